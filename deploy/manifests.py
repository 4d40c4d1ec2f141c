# SPDX-License-Identifier: Apache-2.0
"""Whether manifests for Kubernetes fit together, for the tests of what is applied and of what the chart renders."""

from __future__ import annotations

import os
import pathlib
import re
import stat
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
        for path in re.findall(r'"(/(?:memory|sockets|flash|cell)/[^:"]*)', settings):
            self.assertTrue(any(path.startswith(mount["mountPath"]) for mount in node["volumeMounts"]), path)
        # What is done before a stop is a command of this version, for the node's socket.
        program, *words = node["lifecycle"]["preStop"]["exec"]["command"]
        self.assertIn(f'socket = "{words[-1]}"', settings)
        said = run(BIN / program, *words)
        self.assertEqual(said.returncode, 1, said.stderr)  # there is no such node here
        self.prepare(pod["spec"]["initContainers"][0], node["securityContext"])
        config = self.directory / "cistern.toml"
        # With sizes of this host, which may be small.
        sizes = re.sub(r'"(/flash/\d+):[^"]*"', r'"\1:1GiB"', re.sub('memory = "[^"]*"', 'memory = "64MiB"', settings))
        config.write_text(self.here(sizes))
        address = "fd00::7" if "[::]" in settings else "10.0.0.7"
        said = run(BIN / "cisternd", "--check", *self.arguments(node, config, address))
        self.assertEqual(said.returncode, 0, said.stderr)
        return found

    def here(self, text: str) -> str:
        """With the pod's directories below this test's."""
        return re.sub(r"(?<![\w.])(?=/(memory|sockets|flash|secret|cell)\b)", str(self.directory), text)

    def prepare(self, init: dict[str, Any], user: dict[str, Any]) -> None:
        """Does what the init container does to the pod's directories, with a Secret as Kubernetes mounts one."""
        for mount in init["volumeMounts"]:
            (self.directory / mount["mountPath"][1:]).mkdir(parents=True)
        if (secret := self.directory / "secret").exists():
            (secret / "..data").mkdir()
            for name in ("key", "next"):
                (secret / "..data" / name).write_text("7a" * 32)
                (secret / name).symlink_to(f"..data/{name}")
        owner = f"{user['runAsUser']}:{user['runAsGroup']}"
        program, *words, script = init["command"]
        self.assertIn(f"owner={owner}\n", script)
        # Who is not root gives files to nobody else.
        here = owner if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"
        said = run(program, *words, self.here(script).replace(f"owner={owner}\n", f"owner={here}\n"))
        self.assertEqual(said.returncode, 0, said.stderr)
        for key in (self.directory / "cell").glob("*"):
            info = key.stat()
            self.assertEqual((f"{info.st_uid}:{info.st_gid}", stat.S_IMODE(info.st_mode)), (here, 0o400))

    def arguments(self, node: dict[str, Any], config: pathlib.Path, address: str) -> list[str]:
        """The node's, as Kubernetes expands them, with the configuration from here."""
        fields = {"spec.nodeName": "host-7.example", "status.podIP": address}
        text = "\n".join(node["args"]).replace("/etc/cistern/cistern.toml", str(config))
        for one in node.get("env", []):
            text = text.replace(f"$({one['name']})", fields[one["valueFrom"]["fieldRef"]["fieldPath"]])
        self.assertNotIn("$(", text)
        return text.split("\n")
