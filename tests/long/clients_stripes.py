#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 1800
#
# Proves that each program of clients.tsv leaves the same as natively when what it saves goes by two stripes.
# How and what it cannot see: tests/system/clients_stripes.py, of which this is the whole table.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import clients_stripes  # noqa: E402
from fc import wanted  # noqa: E402

rows = clients_stripes.clients.installed(list(clients_stripes.clients.rows()))
clients_stripes.run([r for r in rows if wanted(r[0])], 12000, "64M")
