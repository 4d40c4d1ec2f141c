// SPDX-License-Identifier: Apache-2.0
// What a key must hold: bytes that follow from the key alone, so that whoever reads a block can tell every
// wrong byte without having kept a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cistern/key.h"

namespace cistern::workload {

// The key of a trace's block in a workload of this `seed`: 32 bytes.
BlockKey WorkloadKey(std::uint64_t hash_id, std::uint64_t seed);

// Any 8 bytes of it name key and position, so permuted, shifted and torn blocks show.
void FillContent(const BlockKey& key, std::span<std::byte> to);
// How many bytes differ from what the key must hold.
std::uint64_t CountWrongBytes(const BlockKey& key, std::span<const std::byte> bytes);

}  // namespace cistern::workload
