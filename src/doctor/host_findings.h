// SPDX-License-Identifier: Apache-2.0
// What facts of a host mean for a node with these settings: decisions on plain values.
#pragma once

#include "doctor/finding.h"
#include "doctor/host.h"
#include "node/options.h"

namespace cistern::doctor {

// One finding or more of each name, in this order: kernel, memory, memory_dir, logout, huge_pages, memlock,
// io_uring, flash (one a volume), reboot (one each that it loses), numa, cpu, clients, arenas (one each that
// is left over), clock. `options` are resolved.
Findings FindingsOfHost(const HostFacts& facts, const node::NodeOptions& options);

// Whether a node has the memory_dir of these options, as the tenant.
bool HasNode(const HostFacts& facts, const node::NodeOptions& options);

}  // namespace cistern::doctor
