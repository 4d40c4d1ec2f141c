# SPDX-License-Identifier: Apache-2.0
"""The chart as Helm renders it: every value has its effect, the parts fit each other, and kubernetes/cistern.yaml is
what it renders to.

Usage: chart_test.py BIN_DIR --write | unittest arguments
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from helm_python.chart import Chart, lint

DEPLOY = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DEPLOY))
from manifests import BIN, Manifests  # noqa: E402  (reads BIN_DIR)

CHART = DEPLOY / "helm/cistern"
APPLIED = DEPLOY / "kubernetes/cistern.yaml"
HEAD = """# SPDX-License-Identifier: Apache-2.0
# What deploy/helm/cistern renders to with its own values, for who has no Helm: `./dev chart --write` writes it.
apiVersion: v1
kind: Namespace
metadata:
  name: cistern
  labels:
    pod-security.kubernetes.io/enforce: privileged  # it mounts directories of the host
"""


def rendered(values: dict[str, Any] | None = None) -> str:
    files = Chart.load(CHART).render(values, name="cistern", namespace="cistern")
    return "".join("---\n" + text.strip() + "\n" for _, text in sorted(files.items()) if text.strip())


class TheChart(Manifests):
    def test_helm_has_nothing_against_it(self) -> None:
        report = lint(CHART, strict=True)
        self.assertEqual(report["errors"], [])
        self.assertLessEqual({one["error"] for one in report["messages"]}, {"icon is recommended"})

    def test_what_is_applied_without_helm_is_what_it_renders_to(self) -> None:
        self.assertEqual(APPLIED.read_text(), HEAD + rendered(), "./dev chart --write writes it")

    def test_with_everything_it_fits_together(self) -> None:
        found = self.check(rendered({
            "image": {"repository": "registry/cistern", "tag": "1", "pullPolicy": "Always"},
            "imagePullSecrets": [{"name": "s"}], "user": 5, "group": 6, "memory": "1GiB",
            "flash": [{"path": "/mnt/a", "size": "1TiB"}, {"path": "/mnt/b", "size": "2TiB"}],
            "clients": ["any"], "port": 9000,
            "settings": {"flash_budget": "2TiB/day", "movers": 2, "quota": ["<a&b>:memory=1MiB"]},
            "nodeSelector": {"gpu": "yes"}, "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
            "podAnnotations": {"a": "b"}, "podSecurityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}},
            "podMonitor": {"enabled": True, "interval": "5s"},
        }))
        pod = found["DaemonSet"]["spec"]["template"]
        settings = found["ConfigMap"]["data"]["cistern.toml"].splitlines()
        for line in ('memory = "1GiB"', 'clients = ["any"]', 'http = "0.0.0.0:9000"', 'flash_budget = "2TiB/day"',
                     "movers = 2", 'quota = ["<a&b>:memory=1MiB"]', 'flash = ["/flash/0:1TiB", "/flash/1:2TiB"]'):
            self.assertIn(line, settings)
        self.assertEqual([one["hostPath"]["path"] for one in pod["spec"]["volumes"] if "flash-" in one["name"]],
                         ["/mnt/a", "/mnt/b"])
        [node] = pod["spec"]["containers"]
        self.assertEqual((node["image"], node["imagePullPolicy"]), ("registry/cistern:1", "Always"))
        self.assertEqual((node["securityContext"]["runAsUser"], node["securityContext"]["runAsGroup"]), (5, 6))
        self.assertIn("owner=5:6", pod["spec"]["initContainers"][0]["command"][2])
        self.assertEqual(pod["metadata"]["annotations"]["a"], "b")
        self.assertEqual(pod["spec"]["securityContext"]["seLinuxOptions"], {"level": "s0:c1,c2"})
        self.assertEqual(pod["spec"]["nodeSelector"], {"gpu": "yes"})
        self.assertEqual(found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["interval"], "5s")

    def test_where_pods_have_ipv6_alone_it_listens_there(self) -> None:
        found = self.check(rendered({"address": "[::]", "cell": {"etcd": ["http://a:2379"]}}))
        self.assertIn('http = "[::]:9180"', found["ConfigMap"]["data"]["cistern.toml"])
        [node] = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
        self.assertIn("[$(ADDRESS)]:7420", node["args"])

    def test_nodes_of_a_cell_have_names_addresses_and_the_key_of_their_own(self) -> None:
        found = self.check(rendered({
            "cell": {"etcd": ["http://a:2379", "http://b:2379"], "port": 7000, "secret": "s", "keys": ["next", "key"]},
            "settings": {"cell_name": "blue"},
        }))
        settings = found["ConfigMap"]["data"]["cistern.toml"].splitlines()
        self.assertIn('cell = ["http://a:2379","http://b:2379"]', settings)
        self.assertIn('cell_key = ["/cell/next", "/cell/key"]', settings)
        pod = found["DaemonSet"]["spec"]["template"]["spec"]
        [node] = pod["containers"]
        self.assertEqual(node["args"][2:], ["--member", "$(HOST)", "--cell-address", "$(ADDRESS):7000"])
        self.assertEqual([(one["name"], one["containerPort"]) for one in node["ports"][1:]],
                         [("cell", 7000), ("blocks", 7001)])
        [secret] = [one for one in pod["volumes"] if "secret" in one]
        self.assertEqual(secret["secret"], {"secretName": "s"})
        # The node has what was copied of it.
        self.assertNotIn(secret["name"], [one["name"] for one in node["volumeMounts"]])

    def test_nodes_of_a_cell_may_have_a_certificate_in_place_of_a_key(self) -> None:
        files = {"cell_authority": "ca.crt", "cell_certificate": "tls.crt", "cell_certificate_key": "tls.key"}
        found = self.manifests(rendered({
            "cell": {"etcd": ["http://a:2379"], "keys": []},
            "settings": {name: f"/cell/{file}" for name, file in files.items()},
        }))
        settings = found["ConfigMap"]["data"]["cistern.toml"].splitlines()
        for line in ("cell_key = []", *(f'{name} = "/cell/{file}"' for name, file in files.items())):
            self.assertIn(line, settings)

    def test_pod_of_a_cell_waits_for_the_keys_that_its_secret_lacks(self) -> None:
        found = self.check(rendered({"cell": {"etcd": ["http://a:2379"], "keys": ["next", "key"]}}))
        script = found["DaemonSet"]["spec"]["template"]["spec"]["initContainers"][0]["command"][2]
        with tempfile.TemporaryDirectory() as folder:
            secret, cell = pathlib.Path(folder, "secret"), pathlib.Path(folder, "cell")
            secret.mkdir()
            cell.mkdir()
            words = ["/bin/sh", "-ec", "chown() { :; }; chmod() { :; }; mkdir() { :; }\n"
                     + script.replace("/secret/", f"{secret}/").replace("/cell/", f"{cell}/")]
            (secret / "key").write_text("1")
            self.assertNotEqual(subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode, 0)
            (secret / "next").write_text("2")
            subprocess.run(words, check=True)
            self.assertEqual(sorted(one.name for one in cell.iterdir()), ["key", "next"])

    def test_another_setting_rolls_the_nodes(self) -> None:
        sums = {self.manifests(rendered(values))["DaemonSet"]["spec"]["template"]
                ["metadata"]["annotations"]["checksum/config"] for values in (None, {"settings": {"movers": 3}})}
        self.assertEqual(len(sums), 2)


if __name__ == "__main__":
    assert BIN.is_dir()
    if sys.argv[1:] == ["--write"]:
        APPLIED.parent.mkdir(exist_ok=True)
        APPLIED.write_text(HEAD + rendered())
    else:
        unittest.main()
