// SPDX-License-Identifier: Apache-2.0
// What a record of another member has to pass to become visible here, or to be handed to those who wait for
// it: the cell's rule, as the drops seen by then decide it.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/drop_list.h"
#include "mesh/reach.h"
#include "store/source_puts.h"

namespace cistern::mesh {

class RuleAdmission final : public store::Admission {
 public:
  struct Record {
    Answered answered;
    std::vector<std::uint64_t> notes;
  };
  struct Reader {
    std::uint64_t conversation = 0;  // 0: it reads for none
    std::int64_t began = 0;          // the last drop listed then: the conversation had not ended
  };

  // All references are borrowed; `check` is of the record's chain, in the namespace of that name, over the
  // rule's drops.
  RuleAdmission(const CellRule& rule, const SharedNamespace& name, ChainCheck& check, Record record,
                Reader reader);

  Answer Look(std::uint32_t* touches) override;
  // What the record came with without the conversations that have ended since, and with the reader's.
  std::vector<std::uint64_t> Notes() const override { return notes_; }
  // Why Look has refused, or kTake.
  Verdict verdict() const { return verdict_; }

 private:
  void AddReader();

  const CellRule& rule_;
  const SharedNamespace& name_;
  ChainCheck& check_;
  const Record record_;
  const Reader reader_;
  std::vector<std::uint64_t> notes_;
  Verdict verdict_ = Verdict::kTake;
};

}  // namespace cistern::mesh
