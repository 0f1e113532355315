#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# slow
# needs: train_gpt helper_s3_server verify
# timeout: 1800
"""test_hosts.py with all ways to start ranks, all stores, and with and without tiers; NFS by instances, each a kernel of its own.
Needs what `tests/cluster/box install --instances` installs, and for its part the MPI that train_gpt was built with.

usage: test_hosts_slow.py TRAIN_GPT HELPER_S3_SERVER VERIFY [CASE...]   (as in: 'mpi-*' sockets-nfs-tier)
"""

import sys

import test_hosts

CASES = [(by, store, tier) for by in ("sockets", "mpi") for store in ("directory", "s3", "nfs") for tier in (False, True)]

if __name__ == "__main__":
    sys.exit(test_hosts.main(CASES, limit=1700))
