// SPDX-License-Identifier: Apache-2.0
// What this member tells the others of what it holds: the samples of its chains, as they come and go. It
// listens to the store's forest, counts how deep each block lies, and keeps the last changes, numbered; who
// missed some takes a snapshot.
//
// A member that tells nobody has none of it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "catalog/forest.h"
#include "catalog/slab.h"
#include "mesh/peer_message.h"
#include "mesh/reach.h"
#include "mesh/sample_index.h"
#include "store/block_store.h"

namespace cistern::mesh {

class SampleFeed final : public catalog::BlockListener {
 public:
  static constexpr std::size_t kKept = 1u << 16;  // changes
  static constexpr std::size_t kPage = 1u << 14;  // samples of a page

  // Borrowed. The store has recovered.
  SampleFeed(Executor& executor, store::BlockStore& store, const SharedNamespaces& names);
  // The store tells it nothing any more.
  ~SampleFeed();
  SampleFeed(const SampleFeed&) = delete;
  SampleFeed& operator=(const SampleFeed&) = delete;

  Executor& executor() { return executor_; }

  // Listens from now on and finds what is here already. Under another history all hashes are others: what was
  // told before counts no more. Awaited before it is called again.
  Task<void> Begin(std::uint64_t history);
  std::uint64_t history() const { return history_; }
  // A namespace is shared since it began that was not, or is not any more.
  bool stale() const { return listening_ && switches_ != names_.switches(); }

  // One past the last change.
  std::uint64_t end() const { return first_kept_ + kept_.size(); }
  // At most `most` changes from `first` on; none: they are not kept any more.
  std::optional<std::vector<SampleChange>> From(std::uint64_t first, std::size_t most) const;
  Event& changed() { return changed_; }
  // Of a snapshot, from what the page before said on.
  Task<SnapshotPage> Page(std::uint32_t from);
  std::uint64_t samples() const { return samples_; }
  // Incarnations of namespaces that it keeps note of.
  std::size_t trees() const { return trees_.size(); }

  void Came(catalog::BlockId block, std::uint16_t group) override;
  void Went(catalog::BlockId block, std::uint16_t group) override;

 private:
  using Depth = std::uint16_t;               // plus one; 0: not known, or no block of a shared namespace
  static constexpr Depth kDeepest = 0xffff;  // and deeper ones: not sampled
  static constexpr std::uint32_t kLooks = 192;

  struct OfTree {
    bool shared = false;
    std::uint64_t seed = 0;
    SampleGrid grid{1};
    std::uint16_t group = 0;
  };
  const OfTree& TreeOf(catalog::TreeId tree);
  void ForgetTrees();
  bool HasNamesake(catalog::BlockId block);
  std::optional<Sample> SampleOf(catalog::BlockId block);
  // The depth of a block that came, from its ancestors; false: more than kLooks of them do not know theirs.
  bool Resolve(catalog::BlockId block);
  void SetDepth(catalog::BlockId block, Depth depth);
  void Tell(const SampleChange& change);

  Executor& executor_;
  store::BlockStore& store_;
  const SharedNamespaces& names_;
  const catalog::Forest& forest_;
  catalog::LazyArray<Depth> depths_;
  std::unordered_map<catalog::TreeId, OfTree> trees_;
  std::unordered_map<std::uint64_t, catalog::TreeId> newest_;  // of each seed
  std::uint64_t history_ = 0;
  std::uint64_t switches_ = 0;  // of names
  bool listening_ = false;
  bool clearing_ = false;  // what is known of blocks, which counts no more: all are found anew behind that
  std::deque<SampleChange> kept_;
  std::uint64_t first_kept_ = 0;
  std::uint64_t samples_ = 0;
  Event changed_;
};

}  // namespace cistern::mesh
