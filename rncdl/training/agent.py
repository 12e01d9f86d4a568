"""Torch's own launcher, which is torchrun's too, ending the whole job soon after a failure."""

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from torch.distributed import DistError
from torch.distributed.elastic.agent.server import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    LogsDest,
    SignalException,
    Std,
    SubprocessContext,
)
from torch.distributed.elastic.rendezvous import RendezvousError

from rncdl.errors import UserError
from rncdl.training.interruption import Interrupted, StopRequest, stop_request
from rncdl.training.meeting import JOIN_S, open_meeting

_POLL_S = 0.1
_GRACE_S = 2.0
"""What the others have, once one has failed, to end by themselves: they may be saying the same."""
_STOP_GRACE_S = 30.0
"""What they have once one has left because all were asked to."""
_FAREWELL_S = 10.0
"""How long a machine where the job has failed stays to be heard by the others."""
_SHOWN_LINES = 60
_ENDING, _LEFT = "rncdl/ending", "rncdl/left"


class Ending(NamedTuple):
    """How the job ended: the exit code, and what is still to be said."""

    code: int
    text: str = ""


def launch(command: Sequence[str], *, processes: int, nodes: int, rendezvous: str) -> int:
    """Run `command` in this many processes on each of `nodes` machines; returns the exit code.

    0, or that of the process that failed: 128 plus the signal where one ended it. Rank 0 talks;
    what another process says is shown only where it is the one that failed.
    """
    # Torch's account of launching, tracebacks included, is of no use to our users.
    logging.getLogger("torch.distributed.elastic").addHandler(logging.NullHandler())
    logging.getLogger("torch.distributed.elastic").propagate = False
    with TemporaryDirectory(prefix="rncdl_") as logs, ExitStack() as closing:
        try:
            meeting, address = open_meeting(rendezvous, nodes=nodes)
            closing.callback(meeting.shutdown)
            spec = WorkerSpec(
                role="rncdl",
                local_world_size=processes,
                entrypoint=command[0],
                # Torch takes a $ for a macro of its own.
                args=tuple(word.replace("$", "$$") for word in command[1:]),
                rdzv_handler=meeting,
                max_restarts=0,
                monitor_interval=_POLL_S,
                local_addr=address,
            )
            ending = _Agent(spec, _OnlyTheFirstTalks(logs, redirects=Std.ALL)).run_to_the_end()
        except RendezvousError as error:
            raise UserError(
                f"--rendezvous {rendezvous}: {nodes} machines did not meet there within "
                f"{JOIN_S // 60} minutes, or it is gone ({error}). Give the same command on each, "
                "with a port that nothing else uses."
            ) from error
    sys.stderr.write(ending.text)
    return ending.code


class _OnlyTheFirstTalks(DefaultLogsSpecs):
    """The process of rank 0 has the screen; the others write to files."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        places = super().reify(envs)
        for local_rank, env in envs.items():
            if env["RANK"] == "0":
                places.stdouts[local_rank] = places.stderrs[local_rank] = ""
        return places


class _Agent(LocalElasticAgent):
    """Torch's agent of this machine, which ends all processes of the job soon after one failed.

    Torch's own sends the others SIGTERM and waits for 30 s. To them SIGTERM means to finish the
    step and save; for this they need the one that has gone, and under NCCL they would wait for it.
    Nor would agents on other machines be told.
    """

    _store: Any  # torch's declaration knows only that there is none before machines have met

    def __init__(self, spec: WorkerSpec, logs: DefaultLogsSpecs) -> None:
        super().__init__(spec, logs)
        self._handlers = ExitStack()
        self._stop = StopRequest()
        self._is_passed_on = False
        self._killed: set[int] = set()
        self._elsewhere: Ending | None = None

    def run_to_the_end(self) -> Ending:
        """Start the processes and wait for them; other machines are told of a failure."""
        with self._handlers:
            try:
                ending = self._describe(self.run())
            except Interrupted as stop:
                ending = Ending(stop.exit_code, f"{stop}\n")
            except SignalException as stop:
                ending = Ending(128 + stop.sigval)
            if ending.code and self._store is not None:
                self._tell(ending)
        return ending

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # From here on a signal is for the processes; before, it ended the wait for machines.
        self._stop = self._handlers.enter_context(stop_request())
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # the others are ours
        started: dict[int, Any] = super()._start_workers(worker_group)
        ranks = [worker.global_rank for worker in worker_group.workers]
        if 0 not in ranks:
            sys.stderr.write(
                f"Started {len(ranks)} of {worker_group.workers[0].world_size} processes here; "
                "process 0, on another machine, tells how the work goes.\n"
            )
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._stop and not self._is_passed_on:
            self._is_passed_on = True
            for process in self._processes():
                process.send_signal(self._stop.exit_code - 128)
        if self._hears_of_an_end() or any(process.poll() for process in self._processes()):
            self._end_processes(_STOP_GRACE_S if self._stop else _GRACE_S)
        return super()._monitor_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._end_processes(0.0)
        super()._shutdown(death_sig, timeout)

    def _exit_barrier(self) -> None:
        """Stay as long as other machines work: they may have met at this one."""

        def is_enough() -> bool:
            if self._stop:
                raise Interrupted("Stopped.", self._stop.exit_code)
            return self._hears_of_an_end()

        self._wait_for_machines(is_enough)

    def _processes(self) -> list[Popen[bytes]]:
        if not isinstance(self._pcontext, SubprocessContext):
            return []
        return [handler.proc for handler in self._pcontext.subprocess_handlers.values()]

    def _end_processes(self, grace_s: float) -> None:
        """Kill those still there after `grace_s`, and what any of them has left behind."""
        deadline = time.monotonic() + grace_s
        running = self._processes()
        while (running := [p for p in running if p.poll() is None]) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._killed.update(process.pid for process in running)
        for process in self._processes():
            with suppress(ProcessLookupError):  # each leads a group of its own
                os.killpg(process.pid, signal.SIGKILL)
        for process in running:
            process.wait()

    def _describe(self, result: RunResult | None) -> Ending:
        failures = result.failures if result is not None else {}
        of_themselves = [rank for rank, one in failures.items() if one.pid not in self._killed]
        if not of_themselves:
            return self._elsewhere or Ending(0)
        rank = min(of_themselves)
        failure = failures[rank]
        text = self._said_by(failure.local_rank)
        if failure.exitcode < 0 and not self._stop:
            cause = " (out of memory?)" if failure.exitcode == -signal.SIGKILL else ""
            text += f"Process {rank} was ended by {failure.signal_name()}{cause}.\n"
        return Ending(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode, text)

    def _said_by(self, local_rank: int) -> str:
        """The end of what a process said that has not the screen."""
        path = self._pcontext.stderrs[local_rank] if self._pcontext else ""
        if not path:
            return ""
        lines = Path(path).read_text("utf-8", errors="replace").splitlines(keepends=True)
        return "".join(lines[-_SHOWN_LINES:])

    def _hears_of_an_end(self) -> bool:
        """Whether the job has ended on another machine."""
        try:
            if self._elsewhere is None and self._store.check([_ENDING]):
                self._elsewhere = Ending(*json.loads(self._store.get(_ENDING)))
        except DistError:
            self._elsewhere = Ending(1, "Stopped: the machine at --rendezvous is gone.\n")
        return self._elsewhere is not None

    def _tell(self, ending: Ending) -> None:
        """Let the other machines know, and give them a moment to hear it."""
        reason = f":\n{ending.text}" if ending.text else "; its screen says why.\n"
        text = f"Stopped, because the job ended on {socket.gethostname()}{reason}"
        deadline = time.monotonic() + _FAREWELL_S
        with suppress(DistError):
            if self._elsewhere is None:
                self._store.set(_ENDING, json.dumps((ending.code, text)))
            self._wait_for_machines(lambda: time.monotonic() > deadline)

    def _wait_for_machines(self, is_enough: Callable[[], bool]) -> None:
        """Return when all machines have come here, or when it is enough."""
        count = self._worker_group.group_world_size or 1
        with suppress(DistError):  # the last one to leave may be the one where they met
            here = self._store.add(_LEFT, 1)
            while here < count and not is_enough():
                time.sleep(_POLL_S)
                here = self._store.add(_LEFT, 0)
