# SPDX-License-Identifier: Apache-2.0
"""Whether manifests for Kubernetes fit together, for the tests of what is applied and of what the chart renders."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import yaml

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
TIMEOUT_S = 300


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class Manifests(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="cistern-deploy-", dir="/dev/shm")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def manifests(self, text: str) -> dict[str, Any]:
        """By kind, of which there is one each."""
        return {one["kind"]: one for one in yaml.safe_load_all(text) if one}

    def check(self, text: str) -> dict[str, Any]:
        """What they name is there, in one another and as settings of a node."""
        found = self.manifests(text)
        pod = found["DaemonSet"]["spec"]["template"]
        self.assertLessEqual(found["DaemonSet"]["spec"]["selector"]["matchLabels"].items(),
                             pod["metadata"]["labels"].items())
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
            for mount in container["volumeMounts"]:
                self.assertIn(mount["name"], volumes)
        [node] = pod["spec"]["containers"]
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertEqual(node[probe]["httpGet"]["port"], node["ports"][0]["name"])
        self.assertEqual(volumes["config"]["configMap"]["name"], found["ConfigMap"]["metadata"]["name"])
        self.assertFalse({"hostIPC", "hostPID", "hostNetwork"} & pod["spec"].keys())
        settings = found["ConfigMap"]["data"]["cistern.toml"]
        self.assertRegex(settings, rf'http = "(0\.0\.0\.0|\[::\]):{node["ports"][0]["containerPort"]}"')
        for path in re.findall(r'"(/(?:memory|sockets|flash)/[^:"]*)', settings):
            self.assertTrue(any(path.startswith(mount["mountPath"]) for mount in node["volumeMounts"]), path)
        # What is done before a stop is a command of this version, for the node's socket.
        program, *words = node["lifecycle"]["preStop"]["exec"]["command"]
        self.assertIn(f'socket = "{words[-1]}"', settings)
        said = run(BIN / program, *words)
        self.assertEqual(said.returncode, 1, said.stderr)  # there is no such node here
        config = self.directory / "c.toml"
        # With directories and sizes of this host, which may be small.
        here = re.sub(r'"/flash/(\d+):[^"]*"', rf'"{self.directory}/flash-\1:1GiB"', settings)
        config.write_text(re.sub('memory = "[^"]*"', 'memory = "64MiB"', here)
                          .replace('"/memory', f'"{self.directory}').replace('"/sockets', f'"{self.directory}'))
        said = run(BIN / "cistern", "config", "--file", config)
        self.assertEqual(said.returncode, 0, said.stderr)
        return found
