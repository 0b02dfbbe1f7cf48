# SPDX-License-Identifier: Apache-2.0
"""A pytest plug-in: vLLM's own tests with attnd's backend chosen.

In: vLLM's tests, as they are. Out: a private daemon, each engine that chooses no backend on it, and a
failure if the daemon has served nothing in the end. Next: own.sh.
"""

import kit  # before vllm
import pytest

DAEMON = kit.Daemon("--pool-size", "3G")


def pytest_configure(config):
    from vllm.engine.arg_utils import EngineArgs

    made = EngineArgs.__post_init__

    def chosen(args):
        if args.attention_backend is None:
            args.attention_backend = "ATTND"
        made(args)

    EngineArgs.__post_init__ = chosen
    DAEMON.start()


def pytest_sessionfinish(session):
    got = DAEMON.ask("status")["counters"]
    jobs = got["decode_jobs"] + got["extend_jobs"]
    print(f"\nattnd has run {jobs} jobs, {got['failed_jobs']} failed")
    if session.testscollected and not jobs:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config):
    DAEMON.stop()
