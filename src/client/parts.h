// SPDX-License-Identifier: Apache-2.0
// What Client's sources share.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "base/codec.h"
#include "base/format.h"
#include "client/answered.h"
#include "client/channel.h"
#include "client/client.h"
#include "client/staging_room.h"
#include "wire/protocol.h"

namespace cistern::client {

struct Client::Parts {
  std::shared_ptr<Channel> channel;
  std::shared_ptr<StagingRoom> staging;
  PutId put_base;  // random; the library's own put ids count on from it
  std::atomic<std::uint64_t> puts{0};
};

// Arguments are checked where they are given, so that an error names the caller's value.
inline Status CheckDeadline(std::int64_t deadline_us) {
  if (deadline_us > 0) return Status();
  return Status(Code::kInvalid,
                Text("deadline_us is ", deadline_us, ": that is in the past, give one over 0"));
}

inline Status CheckCount(std::string_view what, std::size_t count, std::size_t limit) {
  if (count <= limit) return Status();
  return Status(Code::kInvalid, Text(count, " ", what, " in one call, the limit is ", limit, ": split it"));
}

inline Status CheckNamespace(const Namespace& ns) {
  if (ns.incarnation() != 0 && ns.slot() < arena::kMaxNamespaces) return Status();
  return Status(Code::kInvalid, "the namespace is none that Attach gave");
}

inline Request RequestFor(wire::Op op, const Namespace& ns, std::int64_t deadline_us) {
  return Request{.op = op,
                 .namespace_slot = ns.slot(),
                 .incarnation = ns.incarnation(),
                 .deadline_ns = DeadlineNs(deadline_us)};
}

inline wire::KeyItem ItemOf(const BlockKey& key) {
  wire::KeyItem item;
  std::memcpy(item.bytes.data(), key.bytes.data(), key.bytes.size());
  item.size = key.length;
  return item;
}

inline wire::PutIdItem ItemOf(const PutId& id) { return {.high = id.high, .low = id.low}; }

// Writes items one after the other into a call's room.
class ItemWriter final {
 public:
  explicit ItemWriter(std::span<std::byte> room) : room_(room) {}
  template <class Item>
  void Put(const Item& item) {
    StoreAt(room_.data(), used_, item);
    used_ += sizeof(item);
  }
  void PutBytes(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    std::memcpy(room_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
  }
  std::size_t used() const { return used_; }

 private:
  std::span<std::byte> room_;
  std::size_t used_ = 0;
};

}  // namespace cistern::client
