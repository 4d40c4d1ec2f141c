// SPDX-License-Identifier: Apache-2.0
// What a node serves, for tests and benches that have its parts on one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "mesh/reach.h"
#include "store/block_store.h"

namespace cistern::mesh {

// As it is at this moment.
class TestServed final : public ServedView {
 public:
  TestServed(const CellRule& rule, const SharedNamespaces& names, const store::BlockStore& store)
      : rule_(rule), names_(names), store_(store) {}
  std::optional<Answered> Answering() const override { return rule_.Answering(); }
  std::optional<ServedNamespace> Find(const SharedNamespace& name) const override {
    const std::optional<std::uint32_t> slot = names_.SlotOf(name);
    if (!slot) return std::nullopt;
    return ServedNamespace{*slot, store_.NamespaceAt(*slot)->incarnation};
  }

 private:
  const CellRule& rule_;
  const SharedNamespaces& names_;
  const store::BlockStore& store_;
};

}  // namespace cistern::mesh
