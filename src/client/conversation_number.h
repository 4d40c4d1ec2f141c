// SPDX-License-Identifier: Apache-2.0
// What a conversation is called at the server and in stamps: 64 bits of its name. Two names with one number
// are one conversation, which among a million is one chance in 10^7.
#pragma once

#include <cstdint>
#include <string_view>

#include "cistern/status.h"

namespace cistern::client {

inline constexpr std::size_t kMaxConversationBytes = 256;

// 0 for the empty name and for no other. kInvalid for one that is too long.
Result<std::uint64_t> ConversationNumber(std::string_view name);

}  // namespace cistern::client
