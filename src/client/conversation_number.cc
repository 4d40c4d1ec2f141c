// SPDX-License-Identifier: Apache-2.0
#include "client/conversation_number.h"

#define XXH_INLINE_ALL  // Debian's shared object is built without SIMD
#include <xxhash.h>

#include "base/format.h"

namespace cistern::client {

Result<std::uint64_t> ConversationNumber(std::string_view name) {
  if (name.empty()) return 0;
  if (name.size() > kMaxConversationBytes)
    return Error(Code::kInvalid, Text("a conversation's name of ", name.size(), " bytes, the limit is ",
                                      kMaxConversationBytes));
  const std::uint64_t number = XXH3_64bits(name.data(), name.size());
  return number != 0 ? number : 1;
}

}  // namespace cistern::client
