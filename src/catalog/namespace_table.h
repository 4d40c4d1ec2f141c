// SPDX-License-Identifier: Apache-2.0
// The namespaces of a node: which list of fields, groups and part sizes has which slot, and under which
// incarnation. The list is the identity: the same list is the same namespace, whatever names it was given;
// a name stands for one list. What is here is what the journal keeps; nothing here knows a block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arena/layout.h"
#include "base/limits.h"
#include "cistern/namespace.h"
#include "cistern/status.h"
#include "policy/placement.h"

namespace cistern::catalog {

inline constexpr std::size_t kMaxNameBytes = 64;  // of a group; of a namespace twice that
inline constexpr std::size_t kMaxNamesOfList = 16;
inline constexpr std::uint16_t kNoGroup = 0xffff;

// A group as the forest needs it.
struct Group {
  std::string name;
  Reach reach = Reach::kFull;
  std::uint32_t window_tokens = 0;
  std::uint32_t window_blocks = 0;        // of kWindow: at least 1
  std::vector<std::uint32_t> part_bytes;  // empty: one part of any length
  std::uint64_t body_bytes = 0;           // 0 where part_bytes is empty
  std::uint16_t parts() const {
    return part_bytes.empty() ? 1 : static_cast<std::uint16_t>(part_bytes.size());
  }
};

struct NamespaceEntry {
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  std::vector<std::string> names;                           // that stand for this list
  std::vector<std::pair<std::string, std::string>> fields;  // sorted by name
  std::vector<Group> groups;
  std::uint32_t block_tokens = 1;
  bool trusted_keys = false;
  policy::LowerWish lower;              // what was said of flash
  std::optional<bool> mesh;             // what was said of other nodes: false keeps it to this one
  std::optional<std::uint32_t> copies;  // what was said of them: nodes of the cell that are to have a block
  bool strict = false;                  // part of the identity
  // What its users call what is in it; sorted by name.
  std::vector<std::pair<std::string, std::string>> labels;
  std::uint16_t first_full = kNoGroup;  // the group whose chain carries reachability

  // Whether other nodes find and read it, as far as its users say.
  bool in_mesh() const { return mesh.value_or(true); }

  // The group in which a parent has to be reachable for a record of `group`; kNoGroup: none has to.
  std::uint16_t ParentGroup(std::uint16_t group) const {
    return groups[group].reach == Reach::kFull ? group : first_full;
  }
  // The group whose records stand for their blocks where blocks are counted.
  std::uint16_t CountedGroup() const { return first_full == kNoGroup ? 0 : first_full; }
};

class NamespaceTable final {
 public:
  NamespaceTable() = default;
  NamespaceTable(const NamespaceTable&) = delete;
  NamespaceTable& operator=(const NamespaceTable&) = delete;
  // kInvalid names the field, its value and its limit. What passes is what the rest may rely on.
  static Status Validate(const NamespaceSpec& spec);

  // What attaching the spec (it passed Validate) means; nothing changes.
  struct Lookup {
    const NamespaceEntry* entry = nullptr;  // the list is known
    bool changes = false;                   // it is new or gets a name, a wider window, another wish
  };
  // kMismatch: the spec's name stands for another list; the message has the first difference and both values.
  // kBusy: the list has kMaxNamesOfList names.
  Result<Lookup> Find(const NamespaceSpec& spec) const;
  // The entry as it will be when the spec is attached; a new one has a free slot and `incarnation`.
  NamespaceEntry Merged(const NamespaceSpec& spec, std::uint64_t incarnation) const;
  // Puts an entry into its slot, replacing what was there under the same list. What Merged gave or the
  // journal holds.
  void Put(NamespaceEntry entry);
  void Forget(std::uint32_t slot);
  void SetIncarnation(std::uint32_t slot, std::uint64_t incarnation);

  // Null when the slot is free or out of range.
  const NamespaceEntry* at(std::uint32_t slot) const {
    return slot < slots_.size() && slots_[slot] ? &*slots_[slot] : nullptr;
  }
  std::uint32_t end() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t size() const { return size_; }
  // The count of Put calls, and its value at the last Put into a slot. Who caches anything made from a list
  // compares these numbers to notice that the list is another.
  std::uint64_t puts() const { return puts_; }
  std::uint64_t PutNumberOf(std::uint32_t slot) const {
    return slot < put_numbers_.size() ? put_numbers_[slot] : 0;
  }

  // Slots of all lists of the same model, this one too, in the order of their puts. Lists are of one model
  // where the label `model` is the same, or of those without it the fields whose names begin with "model";
  // one without any is of none. For people alone: who means to share and does not, differs in another field.
  std::span<const std::uint32_t> KinOf(std::uint32_t slot) const {
    return slot < kin_.size() && kin_[slot] != nullptr ? *kin_[slot] : std::span<const std::uint32_t>();
  }

  // The list as one string, which is its identity: two entries are the same namespace when these are equal.
  // Window lengths, block lengths and names are not in it (docs/formats/cell.md).
  static std::string ListOf(const NamespaceEntry& entry);
  // A number of the list, for people: two that differ have different ones as good as always, and a name for
  // it costs no looking at fields. Nothing is decided by it.
  static std::uint64_t Fingerprint(const NamespaceEntry& entry);
  // In 16 digits.
  static std::string FingerprintText(std::uint64_t fingerprint);

  // The spec that attaches the same namespace at another node, with the wishes that its users said last and
  // without its names.
  static NamespaceSpec SpecOf(const NamespaceEntry& entry);

  // The bytes that a journal keeps, and back; none for bytes that no entry encodes to. All but its labels.
  static std::vector<std::byte> Encode(const NamespaceEntry& entry);
  static std::optional<NamespaceEntry> Decode(std::span<const std::byte> bytes);
  // The slot of what Encode gave, of any version; none where there are too few bytes for one.
  static std::optional<std::uint32_t> SlotOf(std::span<const std::byte> bytes);
  // The journal's bytes of the slot's labels, a record of their own: a node that knows no labels skips it and
  // keeps the namespace. Empty where there are none.
  static std::vector<std::byte> EncodeLabels(const NamespaceEntry& entry);
  struct Labels {
    std::uint32_t slot = 0;
    std::vector<std::pair<std::string, std::string>> labels;
  };
  static std::optional<Labels> DecodeLabels(std::span<const std::byte> bytes);

 private:
  std::vector<std::optional<NamespaceEntry>> slots_;
  std::unordered_map<std::string, std::uint32_t> by_list_;  // the list's canonical bytes
  std::unordered_map<std::string, std::uint32_t> by_name_;
  std::unordered_map<std::string, std::vector<std::uint32_t>> by_model_;
  std::vector<std::vector<std::uint32_t>*> kin_;  // by slot, in by_model_; null: of no model
  std::uint32_t size_ = 0;
  std::uint64_t puts_ = 0;
  std::vector<std::uint64_t> put_numbers_;  // by slot
};

}  // namespace cistern::catalog
