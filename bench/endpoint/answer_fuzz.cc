// SPDX-License-Identifier: Apache-2.0
// Any bytes as an answer: it means the same wherever it is split, and ends as an answer or a reason.
#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "endpoint/answer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = 1 + data[0] % 64;
  const std::string_view stream(reinterpret_cast<const char*>(data + 1), size - 1);
  cistern::AnswerReader whole, split;
  whole.Feed(stream, {1});
  for (std::size_t at = 0; at < stream.size(); at += step) {
    if (!split.Feed(stream.substr(at, step), {1})) break;
  }
  const auto one = whole.Finish();
  const auto other = split.Finish();
  CISTERN_ASSERT(one.has_value() == other.has_value());
  CISTERN_ASSERT(!one || (one->kind == other->kind && one->reason == other->reason && !one->reason.empty()));
  CISTERN_ASSERT(one || !whole.pieces().empty());
  CISTERN_ASSERT(whole.text() == split.text() && whole.pieces().size() == split.pieces().size());
  return 0;
}
