// SPDX-License-Identifier: Apache-2.0
// What clients of a storm's cell may find, as far as their calls were answered: the versions of blocks that
// were put, who used them, and the drops and ends that were acknowledged, each with the nodes that it binds.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "mesh/cell_drop.h"

namespace cistern::mesh {

class RealNode;

class CellModel final {
 public:
  // Numbers of a chain's blocks, from the first on. The last one's tells the chain.
  using Chain = std::vector<std::uint64_t>;

  struct Drop {
    CellDrop drop;
    std::size_t space = 0;
    std::vector<std::uint64_t> numbers;
    std::uint64_t order = 0;  // when it was asked for
    Instant deadline;
    bool ended = false, acknowledged = false;
    RealNode* node = nullptr;         // that was asked, in this process
    std::uint64_t process = 0;        // of it
    std::uint64_t history = 0;        // under which it was acknowledged
    std::uint64_t etcd_life = 0;      // etcd was restored so often before
    std::set<const RealNode*> bound;  // that have applied it
  };
  // What binds a node beside the drops that it has applied.
  struct Standing {
    bool of_members = false;  // those of its cell: it is in it
    bool strict = false;      // all, in a strict namespace
    // Neither speaks of what was acknowledged in an earlier life of etcd, as long as the node has not noticed
    // that it was restored: it is still under the history of then.
    std::uint64_t history = 0;
  };

  explicit CellModel(std::size_t spaces) : known_(spaces) {}

  static BlockKey KeyOf(std::uint64_t number);
  static std::vector<BlockKey> KeysOf(std::span<const std::uint64_t> chain);
  // Of two sizes: each takes a chunk of memory, of which a node has few. It begins with the version.
  static std::vector<std::byte> BodyOf(std::uint64_t version, std::uint64_t number);

  // The last block of the chain is being put, to be read as this version.
  std::uint64_t Put(std::size_t space, Chain chain, bool has_ttl);
  // It was answered.
  void NotePut(std::uint64_t version, Instant expires);
  // The conversation wrote or used whatever is there under these numbers, or may have: `ended` says whether
  // that was answered. What was put for no conversation ends with none.
  void NoteUse(std::size_t space, const Chain& chain, std::uint64_t conversation, bool ended);
  // It wrote nothing there, or may not have: the node has that in memory alone.
  void NoteTold(const RealNode& node, std::size_t space, const Chain& chain, std::uint64_t conversation);
  // The node begins with what it has made durable. What one conversation wrote, that has ended since, and
  // another one only used is nobody's then (decision 0006).
  void NoteStart(const RealNode& node);

  // Its number.
  std::size_t Ask(Drop drop);
  Drop& drop(std::size_t which) { return drops_[which]; }
  std::size_t drops() const { return drops_.size(); }
  void Acknowledge(std::size_t which, std::uint64_t history, std::set<const RealNode*> bound);
  // A node begins with what another has made durable.
  void NoteCopy(const RealNode& original, const RealNode& copy);
  void NoteRestore() { ++etcd_life_; }
  // Acknowledged drops that bind the node's clients now.
  std::set<std::size_t> Binding(const RealNode& node, std::size_t space, const Standing& standing) const;

  // Empty, or what is broken where a client of a node reads this under the number, who asked then and for
  // whom these drops are binding.
  std::string Check(std::size_t space, std::uint64_t number, std::span<const std::byte> body,
                    const std::set<std::size_t>& binding, Instant asked) const;

  // Nothing was asked for that may take the block, and its time does not pass: it goes with its node's room
  // alone.
  bool Stays(std::size_t space, std::uint64_t number) const;

  // Numbers that were put.
  const std::set<std::uint64_t>& known(std::size_t space) const { return known_[space]; }
  const Chain& chain(std::uint64_t number) const { return chains_.at(number); }
  // Some version of it may expire.
  bool has_ttl(std::uint64_t number) const { return with_ttl_.contains(number); }

 private:
  // What one put wrote.
  struct Version {
    std::size_t space = 0;
    Chain chain;
    Instant expires = Instant::Never();
    std::uint64_t order = 0;  // when its put was answered; 0: it was not
    // Acknowledged drops that cover it: each alone, or ends of all of its users together.
    std::vector<std::vector<std::size_t>> dead_by;
  };

  // The drop `which` alone, or with the ends of other conversations; empty: something keeps the version.
  std::vector<std::size_t> EndedBy(const Version& version, std::size_t which) const;

  std::vector<Version> versions_;               // by number
  std::vector<std::set<std::uint64_t>> known_;  // by namespace
  std::map<std::uint64_t, Chain> chains_;       // by the last block's number
  std::set<std::uint64_t> with_ttl_;
  std::vector<Drop> drops_;
  // By namespace and block: its conversations, and when the last such call was answered; 0: it was not.
  std::map<std::pair<std::size_t, std::uint64_t>, std::map<std::uint64_t, std::uint64_t>> users_;
  struct Told {
    std::size_t space;
    std::uint64_t number, conversation;
    auto operator<=>(const Told&) const = default;
  };
  std::map<const RealNode*, std::set<Told>> told_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> ends_;  // acknowledged, by namespace
  std::uint64_t order_ = 0, etcd_life_ = 0;
};

}  // namespace cistern::mesh
