// SPDX-License-Identifier: Apache-2.0
// What tests of a store say in one word: blocks by their number, each with a key and bytes of its own, put,
// read and looked for in one namespace of a TestStore.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/random_bytes.h"
#include "store/test_store.h"

namespace cistern::store {

using State = PartOutcome::State;

inline BlockKey Key(std::uint64_t n) {
  BlockKey key;
  key.length = 16;
  FillRandom(n + 1, std::as_writable_bytes(std::span(key.bytes).first(key.length)));
  return key;
}

inline std::vector<std::byte> Body(std::uint64_t n, std::size_t bytes) {
  std::vector<std::byte> body(bytes);
  FillRandom(n * 31 + 7, body);
  return body;
}

inline NamespaceSpec OneGroup(std::string name = "test") {
  NamespaceSpec spec;
  spec.name = name;
  spec.fields = {{"name", name}};
  spec.groups = {{.name = "full"}};
  return spec;
}

inline NamespaceSpec TwoParts() {
  NamespaceSpec spec = OneGroup("parts");
  spec.groups[0].part_bytes = {70'000, 5'000};
  return spec;
}

inline NamespaceSpec FullAndWindow() {
  NamespaceSpec spec = OneGroup("window");
  spec.groups = {{.name = "full"}, {.name = "local", .reach = Reach::kWindow, .window_tokens = 2}};
  return spec;
}

inline NamespaceSpec WindowOnly() {
  NamespaceSpec spec = OneGroup("window only");
  spec.groups = {{.name = "local", .reach = Reach::kWindow, .window_tokens = 2}};
  return spec;
}

inline NamespaceSpec OneWindow(std::uint32_t blocks) {
  NamespaceSpec spec = OneGroup("window");
  spec.groups = {{.name = "window", .reach = Reach::kWindow, .window_tokens = blocks}};
  return spec;
}

class BlockStoreTest : public testing::Test {
 protected:
  void Make(const TestStoreOptions& options = {}, const NamespaceSpec& spec = OneGroup()) {
    t.emplace(options);
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(spec);
  }
  void Attach(const NamespaceSpec& spec) {
    auto attached = t->Run(t->store->Attach(spec));
    ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
    ns = *attached;
  }
  Instant Soon() { return t->clock.Now().PlusUs(1'000'000); }
  catalog::Caller Me(std::uint8_t owner = 1, catalog::SessionId session = 1) {
    catalog::Caller caller{session, {}};
    caller.owner[0] = std::byte{owner};
    return caller;
  }
  // Of an owner and a session of its own.
  catalog::Caller Somebody(std::uint64_t n) {
    catalog::Caller caller{1000 + n, {}};
    std::memcpy(caller.owner.data() + 8, &caller.session, sizeof(caller.session));
    return caller;
  }
  // Block n with parent (none for 0), its bytes made from its content number.
  PartWrite Part(std::uint64_t n, std::optional<std::uint64_t> parent, std::size_t bytes = 4096) {
    bodies_.push_back(Body(n, bytes));
    PartWrite part;
    part.key = Key(n);
    if (parent) part.parent = Key(*parent);
    part.put_id = {1, ++puts_};
    part.from = bodies_.back();
    return part;
  }
  std::vector<PartOutcome> Write(std::vector<PartWrite> parts, catalog::Caller caller) {
    return t->Run(t->store->Write(caller, ns.slot, std::move(parts), Soon()));
  }
  PartOutcome WriteOne(PartWrite part) { return Write({std::move(part)}, Me())[0]; }
  State Put(std::uint64_t n, std::optional<std::uint64_t> parent, std::size_t bytes = 4096) {
    const PartOutcome outcome = WriteOne(Part(n, parent, bytes));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    return outcome.state;
  }
  // Blocks first to last, each below the one before; the first a chain's first.
  void PutChain(std::uint64_t first, std::uint64_t last, std::size_t bytes = 4096) {
    for (std::uint64_t n = first; n <= last; ++n) {
      ASSERT_EQ(Put(n, n == first ? std::nullopt : std::optional(n - 1), bytes), State::kPublished) << n;
    }
  }
  bool Here(std::uint64_t n, std::uint16_t group = 0) { return t->Read(ns.slot, Key(n), group).has_value(); }
  bool Exact(std::uint64_t n, std::size_t bytes = 4096) { return t->Read(ns.slot, Key(n)) == Body(n, bytes); }
  std::uint32_t Match(std::uint64_t first, std::uint64_t last, std::uint32_t matched = 0) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(Key(n));
    Unmatched unmatched;
    auto runs = t->Run(t->store->MatchRest(ns.slot, matched, chain, &unmatched));
    EXPECT_TRUE(runs.has_value());
    std::uint32_t blocks = 0;
    for (const MatchRun& run : *runs) blocks += run.blocks;
    t->store->NoteMisses(ns.slot, chain, blocks, unmatched);
    return blocks;
  }
  Result<catalog::LeaseId> Hold(std::uint64_t first, std::uint64_t last, std::int64_t us = 1'000'000,
                                catalog::Caller caller = {1, {}}) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(Key(n));
    return t->Run(t->store->Hold(caller, ns.slot, chain, us));
  }
  AcquireGrant Acquire(std::vector<std::uint64_t> ns_keys, catalog::Caller caller) {
    std::vector<catalog::BlockName> names;
    for (std::uint64_t n : ns_keys) names.push_back({Key(n), 0});
    auto grant = t->Run(t->store->Acquire(caller, ns.slot, names, 1'000'000, Soon()));
    EXPECT_TRUE(grant.has_value());
    return *grant;
  }
  // As a client reads: under a lease, for which what lies below is fetched.
  void ReadLeased(std::uint64_t n, std::size_t bytes) {
    const AcquireGrant grant = Acquire({n}, Me());
    ASSERT_EQ(grant.views[0].code, Code::kOk) << n;
    EXPECT_TRUE(Exact(n, bytes)) << n;
    ASSERT_TRUE(t->store->Release(Me(), grant.lease).ok());
    t->Tick();
  }
  Result<std::uint64_t> Drop(std::uint64_t n) {
    const BlockKey key = Key(n);
    return t->Run(t->store->Drop(ns.slot, std::span(&key, 1)));
  }
  void Restart(const NamespaceSpec& spec = OneGroup()) {
    t->Restart();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(spec);
  }
  BlockStore::Occupancy Occupied() { return t->store->occupancy(); }

  std::optional<TestStore> t;
  Attached ns;
  std::vector<std::vector<std::byte>> bodies_;
  std::uint64_t puts_ = 0;
};

}  // namespace cistern::store
