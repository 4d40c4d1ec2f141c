// SPDX-License-Identifier: Apache-2.0
// Any bytes as what etcd's gateway says: they are read to an answer that keeps what etcd.h promises of it, or
// to a reason, and nothing is read past their end.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "etcd/gateway_message.h"
#include "io/simulated_loop.h"

namespace {

using namespace cistern;
using namespace cistern::etcd;

void CheckRange(const RangeAnswer& answer) {
  CISTERN_ASSERT(answer.header.revision >= 1 && answer.header.cluster_id != 0);
  const std::string* last = nullptr;
  for (const KeyValue& key : answer.keys) {
    CISTERN_ASSERT(!key.key.empty() && (last == nullptr || *last < key.key));
    CISTERN_ASSERT(key.create_revision >= 1 && key.create_revision <= key.mod_revision);
    last = &key.key;
  }
}

template <class T>
bool IsAnswer(const Result<T>& result) {
  CISTERN_ASSERT(result || (result.error().code() == Code::kIoError && !result.error().message().empty()));
  return result.has_value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // A copy of its own, so that a read past the end is seen.
  const std::unique_ptr<char[]> copy(new char[size - 1]);
  std::copy_n(data + 1, size - 1, copy.get());
  const std::string_view text(copy.get(), size - 1);
  SimulatedClock clock;
  io::SimulatedDisk disk(1);
  const auto loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  Executor& executor = loop->executor();
  switch (data[0] % 7) {
    case 0: {
      const auto answer = loop->BlockOn(ReadRangeAnswer(executor, text));
      if (IsAnswer(answer)) CheckRange(*answer);
      break;
    }
    case 1: {
      const auto answer = loop->BlockOn(ReadCommitAnswer(executor, text));
      if (!IsAnswer(answer)) break;
      for (const RangeAnswer& range : answer->ranges) CheckRange(range);
      break;
    }
    case 2: {
      const auto answer = loop->BlockOn(ReadLeaseAnswer(executor, text));
      CISTERN_ASSERT(!IsAnswer(answer) || (answer->id != 0 && answer->ttl_s >= 0));
      break;
    }
    case 3: {
      const auto message = loop->BlockOn(ReadWatchMessage(executor, text));
      if (!IsAnswer(message)) break;
      std::int64_t last = 1;
      for (const WatchEvent& event : message->events) {
        CISTERN_ASSERT(!event.key.key.empty() && event.key.mod_revision >= last);
        CISTERN_ASSERT(event.kind == WatchEvent::Kind::kDelete || event.key.create_revision >= 1);
        last = event.key.mod_revision;
      }
      break;
    }
    case 4: {
      const auto error = ReadGatewayError(text);
      CISTERN_ASSERT(!error || error->code != 0);
      break;
    }
    case 5: {
      IsAnswer(ReadVersion(text));
      IsAnswer(ReadToken(text));
      break;
    }
    default: {
      const auto bytes = DecodeBase64(text);
      CISTERN_ASSERT(!bytes || EncodeBase64(*bytes) == text);
      CISTERN_ASSERT(DecodeBase64(EncodeBase64(text)) == text);
    }
  }
  return 0;
}
