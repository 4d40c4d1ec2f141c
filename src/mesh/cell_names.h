// SPDX-License-Identifier: Apache-2.0
// Names of namespaces in a cell: each stands for one list on all of its nodes. A name lies in etcd with the
// hash of its list from the first time on that a member claims it (docs/formats/cell.md); another list under
// it is refused where it is attached, and said of what a node had before it joined. Without etcd a name is
// taken as it comes, and claimed later. Whose attach failed after all gives its name back, unless another
// member has claimed it meanwhile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/event.h"
#include "base/task.h"
#include "catalog/namespace_table.h"
#include "etcd/etcd.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_state.h"

namespace cistern::mesh {

// A name and what it stands for.
struct NamedList {
  static constexpr std::size_t kMaxText = 1024;

  std::string tenant, name;
  std::array<std::byte, 32> list_hash{};
  std::string text;  // the list for people, cut to kMaxText
};
NamedList NamedListOf(const std::string& tenant, std::string name, const catalog::NamespaceEntry& entry);

class CellNames final {
 public:
  // Of a node, until it starts again: nothing takes a name out of etcd by itself.
  static constexpr std::size_t kMostNames = 4096;
  // Questions with etcd at a time: leases and drops have the rest of its calls.
  static constexpr std::size_t kMostAsked = 8;
  // How long a name counts as another list's without a question.
  static constexpr std::int64_t kRefusedUs = 1'000'000;

  // All is borrowed.
  CellNames(etcd::Etcd& etcd, std::string prefix, const CellState& state)
      : etcd_(etcd), keys_(std::move(prefix)), state_(state) {}
  CellNames(const CellNames&) = delete;
  CellNames& operator=(const CellNames&) = delete;

  Executor& executor() { return etcd_.executor(); }

  // ok: in the cell the name stands for this list, now at the latest. kMismatch: for another one, which the
  // message has. Else it is not known: this member has not joined, etcd did not answer by the deadline, or
  // kMostNames others were asked for.
  Task<Status> Claim(NamedList list, Instant deadline);
  // Takes the name out of the cell where this member's Claim has put it there and nobody else has claimed it
  // since: nothing here has it. What etcd does not answer now WithdrawRest asks again.
  Task<void> Withdraw(NamedList list, Instant deadline);
  Task<void> WithdrawRest(Instant deadline);
  // ok, where Claim would say so without a question. Else null: what stands for another list may be free a
  // second later, since a person can take it out of etcd.
  const Status* Known(const NamedList& list) const;

 private:
  struct Answer {
    std::uint64_t history = 0;
    std::array<std::byte, 32> list_hash{};
    Status status;          // ok or kMismatch
    std::int64_t made = 0;  // revision at which this member has put it there; 0: it was there
    std::string value;      // of kMismatch: what it stands for
    Instant said;
  };
  // Names that this member has put there and that nothing here has.
  struct Unwanted {
    std::uint64_t history = 0;
    std::int64_t made = 0;
  };
  // A claim that etcd has not answered yet: others of its name wait, and take its answer where their list is
  // the same.
  struct Asked {
    std::array<std::byte, 32> list_hash{};
    Status status;
    Event ended;
  };
  // kMismatch, where it was said of this name lately and holds for this list as well; else ok.
  Status Refused(const std::string& key, const NamedList& list) const;
  Task<Status> Ask(std::string key, NamedList list, Instant deadline);
  // The first claim by another than who has put it there writes it once more, so that it stays.
  Task<Result<etcd::TransactionAnswer>> Confirm(std::string key, std::string value, std::int64_t revision,
                                                Instant deadline);
  // And from unwanted_, unless it may still be there as this member has put it there.
  Task<void> Remove(std::string key, Unwanted unwanted, Instant deadline);
  // Waits until fewer than kMostAsked are under way.
  Task<Result<etcd::TransactionAnswer>> Commit(etcd::Transaction transaction, Instant deadline);
  Status Compare(const std::string& key, std::string_view value, const NamedList& list) const;

  etcd::Etcd& etcd_;
  const CellKeys keys_;
  const CellState& state_;
  std::map<std::string, Answer> answers_;                // by key
  std::map<std::string, Unwanted> unwanted_;             // by key
  std::map<std::string, std::shared_ptr<Asked>> asked_;  // by key
  std::size_t under_way_ = 0;
  Event answered_;
};

}  // namespace cistern::mesh
