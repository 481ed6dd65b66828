"""What an executor leaves behind is ended with it, and nothing else is."""

import os
import subprocess
import sys

import psutil

from builders.null_models import comes_true
from ge_text.vllm import orphans

LEADER = """
import subprocess, sys, time
from ge_text.vllm.orphans import watch_for_orphans
child = subprocess.Popen(["sleep", "60"])
watch_for_orphans()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_process_takes_its_group_along():
    """Its child does not outlive it, nor does the watch; this test's own group does."""
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = psutil.Process(int(leader.stdout.readline()))
    watches = [p for p in psutil.Process(leader.pid).children() if p.pid != child.pid]
    assert len(watches) == 1
    leader.kill()
    leader.wait()
    leader.stdout.close()
    assert comes_true(lambda: not any(map(_lives, (child, *watches))))


def test_who_leads_no_group_watches_nothing(monkeypatch):
    """Else a stub would take its server along."""
    monkeypatch.setattr(os, "getpgrp", lambda: os.getpid() + 1)
    before = psutil.Process().children()
    orphans.watch_for_orphans()
    assert psutil.Process().children() == before


def test_a_process_that_has_ended_is_not_waited_for():
    """Whatever its group was, it is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    orphans.main(process.pid)


def _lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
