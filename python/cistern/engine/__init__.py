# SPDX-License-Identifier: Apache-2.0
"""The part of a connector that is the same for every inference engine.

An engine's own package (`cistern.vllm`) translates: its calls into those of a `Coordinator` beside its scheduler and of
a `Rank` in each worker, its configuration into `EngineFacts`, its requests and pages into `Request` and `PagePool`.
Nothing here imports an engine, or such a package.

    coordinator     the scheduler side: requests in, orders for the ranks out
    plan            its decisions, on plain values
    shared_session  the session that an engine's ranks share
    rank            one rank: carries out orders, reports each once
    mover, staging  bytes between pages and the store
    connection      one process's session with the node, kept up by a thread
    layout          places of pages, from KV cache tensors
    identity, files, adapters  who may share KV
    options         options of a connector, parameters of a request
"""
