// SPDX-License-Identifier: Apache-2.0
// What tests of a store say of puts of a source: begun, landed and finished by a block's number.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "record/verified_copy.h"
#include "store/block_store_fixture.h"
#include "store/source_puts.h"

namespace cistern::store {

class Admits final : public Admission {
 public:
  explicit Admits(Answer answer = Answer::kTake, int more = 0) : answer_(answer), more_(more) {}
  Answer Look(std::uint32_t* touches) override {
    ++looks;
    if (more_-- <= 0) return answer_;
    *touches = 0;
    return Answer::kMore;
  }
  std::vector<std::uint64_t> Notes() const override { return notes; }
  int looks = 0;
  std::vector<std::uint64_t> notes;

 private:
  const Answer answer_;
  int more_;
};

class SourceStoreTest : public BlockStoreTest {
 protected:
  Result<SourcePut> Begin(std::uint64_t n, std::optional<std::uint64_t> parent, std::size_t bytes = 4096) {
    SourceBlock block{.key = Key(n), .body_bytes = bytes};
    if (parent) block.parent = Key(*parent);
    return t->Run(t->store->source_puts().Begin(ns.slot, block, Soon()));
  }
  // Block n's body lands, and what is said of it is true.
  SourceFacts Land(SourcePut& put, std::uint64_t n) {
    const std::vector<std::byte> body = Body(n, put.body().size());
    std::ranges::copy(body, put.body().begin());
    return {.part_bytes = {static_cast<std::uint32_t>(body.size())},
            .segment_crcs = {record::Crc32c(body.data(), body.size())},
            .put_id = {8, n}};
  }
  Status Finish(SourcePut put, SourceFacts facts, Admits admits = Admits()) {
    return t->Run(t->store->source_puts().Finish(std::move(put), std::move(facts), admits));
  }
};

}  // namespace cistern::store
