# SPDX-License-Identifier: Apache-2.0
"""Cistern's connector for vLLM: `--kv-transfer-config '{"kv_connector": "CisternConnector", ...}'`.

vLLM calls `register` in each of its processes, by the entry point `vllm.general_plugins`. docs/vllm.md has the rest.
"""

from __future__ import annotations

NAME = "CisternConnector"


def register() -> None:
    """Makes the connector known to vLLM by its name; again does nothing. A vLLM that has no connectors of this kind
    goes on without: it may not have been asked for one."""
    from ..engine.cpus import remember
    from . import versions

    remember()
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    except ImportError as error:
        import logging

        import vllm

        logging.getLogger("vllm.cistern").warning("cistern: %s", versions.lacking(vllm.__version__, error))
        return
    versions.leave_embeddings_as_asked(NAME)
    try:
        KVConnectorFactory.register_connector(NAME, "cistern.vllm.connector", NAME)
    except ValueError:  # already: plugins may be loaded more than once in a process
        return
