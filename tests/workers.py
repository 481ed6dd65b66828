"""How files go to the workers of pytest-xdist: as `--dist loadfile`, and a dead worker ends nothing."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["FileScheduling"]


class FileScheduling(LoadFileScheduling):
    """Hands out anew what a dead worker left undone, and waits for no worker that waits for it.

    A worker begins its last test when it has been given another file, or been told that there is
    none; both are done when a test of it has ended. With pytest-xdist 3.8 a run waits for ever for a
    worker that took a file without a test that is left to do, and for one that replaces a dead
    worker and took the last file, of one test (xdist/scheduler/loadscope.py).
    """

    def schedule(self) -> None:
        """Give files to all workers, at first and whenever another one is there."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker and hand out what it left; return the test in which it died, if in one."""
        files = self.assigned_work[node]
        self.assigned_work[node] = {
            name: tests for name, tests in files.items() if not all(tests.values())
        }
        return super().remove_node(node)
