// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/step_budget.h"
#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

class PromptsTest : public BlockStoreTest {
 protected:
  void MakeFor(std::uint64_t blocks, const NamespaceSpec& spec = OneGroup()) {
    TestStoreOptions options;
    options.store.max_blocks = blocks;
    options.store.eviction = EvictionPolicy::kReuse;
    options.store.eviction_time_ms = [this] { return now_ms_; };
    Make(options, spec);
  }
  std::uint32_t Resident(const std::vector<std::uint64_t>& chain) {
    std::uint32_t here = 0;
    while (here < chain.size() && Here(chain[here])) ++here;
    return here;
  }
  // As a client's match tells it.
  void Name(const std::vector<std::uint64_t>& chain, bool partial = false) {
    const std::uint32_t here = Resident(chain);
    MatchedPrompt prompt{.first_new = here > 0, .matched = here, .partial = partial};
    for (std::size_t i = here > 0 ? here - 1 : 0; i < chain.size(); ++i) prompt.keys.push_back(Key(chain[i]));
    t->store->NotePrompt(ns.slot, std::move(prompt));
  }
  // One request: its match, its writes, its touches from leaf to root. Blocks that stayed out.
  std::size_t Ask(std::uint64_t now_ms, const std::vector<std::uint64_t>& chain, bool partial = false) {
    now_ms_ = now_ms;
    bodies_.clear();
    const std::uint32_t here = Resident(chain);
    Name(chain, partial);
    std::vector<PartWrite> parts;
    for (std::size_t i = here; i < chain.size(); ++i)
      parts.push_back(Part(chain[i], i == 0 ? std::nullopt : std::optional(chain[i - 1]), 512));
    std::size_t out = 0;
    if (!parts.empty()) {
      for (const PartOutcome& outcome : Write(std::move(parts), Me()))
        out += outcome.status.code() == Code::kBusy;
    }
    std::vector<BlockKey> keys;
    for (std::size_t i = chain.size(); i-- > 0;) keys.push_back(Key(chain[i]));
    t->Run(t->store->Touch(ns.slot, keys));
    return out;
  }
  std::vector<std::uint64_t> Numbers(std::uint64_t first, std::uint64_t count) {
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t n = first; n < first + count; ++n) numbers.push_back(n);
    return numbers;
  }
  // Conversations that come back after 20 s, and documents that never do.
  void Learn(std::uint64_t sessions) {
    for (std::uint64_t session = 0; session < sessions; ++session) {
      const std::uint64_t first = 1'000 + session * 100;
      Ask(now_ms_ + 1'000, Numbers(first, 2));
      Ask(now_ms_ + 20'000, Numbers(first, 3));
      Ask(now_ms_ + 1'000, Numbers(first + 10, 70));
    }
  }

  std::uint64_t now_ms_ = 0;
};

TEST_F(PromptsTest, ABlockWorthLessThanAllThatWouldLeaveForItStaysOutAndItsChainWithIt) {
  MakeFor(40);
  Learn(60);
  // Memory is full of what may come back; a document would take it all.
  for (std::uint64_t session = 0; session < 14; ++session)
    Ask(now_ms_ += 500, Numbers(100 + 10 * session, 3));
  const std::uint64_t stayed_out = t->store->counters().stayed_out.value();
  EXPECT_GT(Ask(now_ms_ + 500, Numbers(500'000, 70)), 30u);
  EXPECT_GT(t->store->counters().stayed_out.value(), stayed_out);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(Occupied().records, 40u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  // The same blocks without a match: no prompt tells what they are, and all enter as far as there is room.
  bodies_.clear();
  std::vector<PartWrite> parts;
  for (std::uint64_t n = 600'000; n < 600'040; ++n)
    parts.push_back(Part(n, n == 600'000 ? std::nullopt : std::optional(n - 1), 512));
  for (const PartOutcome& outcome : Write(std::move(parts), Me()))
    EXPECT_EQ(outcome.state, State::kPublished);
}

TEST_F(PromptsTest, AMatchAloneChangesNoOrder) {
  MakeFor(6);
  Ask(0, {1, 2, 3});
  Ask(60'000, {11, 12, 13});
  now_ms_ = 120'000;
  for (int i = 0; i < 300; ++i) Name({1, 2, 3, 1'000u + static_cast<std::uint64_t>(i)});
  ASSERT_EQ(Put(21, {}), State::kPublished);
  EXPECT_FALSE(Here(3));
  EXPECT_TRUE(Here(13));
}

TEST_F(PromptsTest, APromptOfWhichNothingIsNewIsTakenInByTheTouchOfItsWholeChain) {
  MakeFor(6);
  Ask(0, {1, 2, 3});
  Ask(60'000, {11, 12, 13});
  EXPECT_EQ(Ask(120'000, {1, 2, 3}), 0u);
  ASSERT_EQ(Put(21, {}), State::kPublished);
  EXPECT_FALSE(Here(13));
  EXPECT_TRUE(Here(3));
}

TEST_F(PromptsTest, ALongPromptIsTakenInByStepsAndALeaseInItIsKept) {
  MakeFor(2'000);
  const std::vector<std::uint64_t> chain = Numbers(1, 2'000);
  EXPECT_EQ(Ask(0, chain), 0u);
  ASSERT_TRUE(Hold(1, 2'000).has_value());
  std::vector<std::uint64_t> longer = chain;
  for (std::uint64_t n = 5'000; n < 5'050; ++n) longer.push_back(n);
  EXPECT_EQ(Ask(30'000, longer), 50u) << "nothing may go: all is above the lease";
  EXPECT_EQ(Resident(chain), 2'000u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(PromptsTest, ANamespaceThatIsDroppedWhileItsPromptWaitsIsNoTrouble) {
  MakeFor(100);
  Ask(0, {1, 2, 3});
  Name({1, 2, 3, 4});
  ASSERT_TRUE(t->Run(t->store->DropNamespace(ns.slot)).has_value());
  EXPECT_EQ(Put(4, {}), State::kPublished);
  EXPECT_EQ(Ask(1'000, {1, 2, 3}), 0u);
}

TEST_F(PromptsTest, EachGroupOfABlockIsUsedWithIt) {
  MakeFor(12, FullAndWindow());
  for (std::uint64_t n = 1; n <= 3; ++n) {
    PartWrite full = Part(n, n == 1 ? std::nullopt : std::optional(n - 1)), local = full;
    local.group = 1;
    local.put_id.low += 1'000;
    for (const PartOutcome& outcome : Write({full, local}, Me())) EXPECT_EQ(outcome.state, State::kPublished);
  }
  Ask(10'000, {1, 2, 3, 4});
  EXPECT_TRUE(Here(3) && Here(3, 1) && Here(4));
}

}  // namespace
}  // namespace cistern::store
