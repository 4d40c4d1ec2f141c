// SPDX-License-Identifier: Apache-2.0
#include "catalog/namespace_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "arena/match.h"
#include "base/assert.h"
#include "base/codec.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/policy.h"
#include "record/seal.h"

namespace cistern::catalog {
namespace {

// 2 where something is said of other nodes: whoever reads 1 alone would not keep to it, and forgets the
// entry. 3 where copies are said.
constexpr std::uint8_t kEntryVersion = 3;
constexpr std::uint8_t kTrustedBit = 1, kStrictBit = 2;

// Names of hash functions that nobody can make collide, as the value of a field `hash` begins (R5).
constexpr std::array<std::string_view, 5> kSafeHashes = {"sha256", "sha512", "sha3", "blake2", "blake3"};

bool Printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

std::string_view ReachName(Reach reach) {
  switch (reach) {
    case Reach::kFull: return "full";
    case Reach::kWindow: return "window";
    case Reach::kLastState: return "last_state";
  }
  return "unknown";
}

Status CheckHash(const NamespaceSpec& spec) {
  if (spec.trusted_keys) return Status();
  for (const auto& [name, value] : spec.fields) {
    const bool hash = name == "hash";
    if (hash &&
        std::ranges::none_of(kSafeHashes, [&](std::string_view safe) { return value.starts_with(safe); })) {
      return Invalid(Text("field hash: '", value,
                          "' is not a cryptographic hash (sha256, sha512, sha3, blake2, "
                          "blake3), so two contents may get one key: use one, or say trusted_keys"));
    }
    std::uint32_t bytes = 0;
    if (name == "key_bytes" &&
        std::from_chars(value.data(), value.data() + value.size(), bytes).ec == std::errc() &&
        bytes < BlockKey::kMinUntrustedBytes) {
      return Invalid(Text("field key_bytes: ", bytes, " is under ", BlockKey::kMinUntrustedBytes,
                          ", so two contents may get one key: use longer keys, or say trusted_keys"));
    }
  }
  return Status();
}

Status CheckFields(const NamespaceSpec& spec) {
  if (spec.fields.size() > kMaxFields) {
    return Invalid(Text("fields: there are ", spec.fields.size(), " and the limit is ", kMaxFields));
  }
  std::size_t bytes = 0;
  std::vector<std::string_view> names;
  for (const auto& [name, value] : spec.fields) {
    if (name.empty()) return Invalid("fields: one has no name");
    if (!Printable(name) || !Printable(value)) {
      return Invalid(Text("field ", name, ": has a byte that cannot be printed"));
    }
    bytes += name.size() + value.size();
    names.push_back(name);
  }
  if (bytes > kMaxFieldBytes) {
    return Invalid(Text("fields: have ", bytes, " bytes together and the limit is ", kMaxFieldBytes));
  }
  std::ranges::sort(names);
  if (auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    return Invalid(Text("field ", *twice, ": stands twice"));
  }
  return Status();
}

policy::LowerWish WishOf(const NamespaceSpec& spec) {
  return {.write = spec.flash_write, .admit = spec.flash_admit};
}

Status CheckWish(const policy::LowerWish& wish) {
  const Status write = wish.write ? CheckPolicy(*wish.write) : Status();
  if (!write.ok()) return Invalid(Text("flash_write: ", write.message()));
  const Status admit = wish.admit ? CheckPolicy(*wish.admit) : Status();
  if (!admit.ok()) return Invalid(Text("flash_admit: ", admit.message()));
  return Status();
}

Status CheckGroup(const GroupSpec& group) {
  const std::string what = Text("group ", group.name, ": ");
  if (group.name.empty() || group.name.size() > kMaxNameBytes || !Printable(group.name)) {
    return Invalid(
        Text("groups: the name '", group.name, "' is not 1 to ", kMaxNameBytes, " printable bytes"));
  }
  if (group.reach == Reach::kLastState) {
    return Invalid(what + "reach last_state is not served by this version; full and window are");
  }
  if (group.reach != Reach::kFull && group.reach != Reach::kWindow) return Invalid(what + "reach is unknown");
  if (group.reach == Reach::kWindow && group.window_tokens == 0) {
    return Invalid(what + "window_tokens: is 0 and a window has at least 1");
  }
  if (group.part_bytes.size() > kMaxGroupParts) {
    return Invalid(Text(what, "part_bytes: there are ", group.part_bytes.size(), " parts and the limit is ",
                        kMaxGroupParts));
  }
  std::uint64_t body = 0;
  for (std::uint64_t bytes : group.part_bytes) {
    if (bytes == 0) return Invalid(what + "part_bytes: a part has at least 1 byte");
    if (bytes > kMaxBodyBytes || (body += bytes) > kMaxBodyBytes) {
      return Invalid(Text(what, "part_bytes: a block has more than ", kMaxBodyBytes, " bytes"));
    }
  }
  return Status();
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

// By name.
Status CheckLabels(const Pairs& labels) {
  if (labels.size() > kMaxLabels)
    return Invalid(Text("labels: there are ", labels.size(), " and the limit is ", kMaxLabels));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto& [name, value] = labels[i];
    if (name.empty() || name.find('=') != std::string::npos || !Printable(name) || !Printable(value)) {
      return Invalid(Text("label ", Shown(name),
                          ": its name is empty or has a '=', or a byte of it or of its "
                          "value cannot be printed"));
    }
    if (name.size() + value.size() > kMaxLabelBytes) {
      return Invalid(Text("label ", Shown(name), ": has ", name.size() + value.size(),
                          " bytes with its value and the limit is ", kMaxLabelBytes));
    }
    if (i > 0 && labels[i - 1].first == name) return Invalid(Text("label ", name, ": stands twice"));
  }
  return Status();
}

Pairs Sorted(Pairs pairs) {
  std::ranges::sort(pairs);
  return pairs;
}

// Empty where neither a label nor a field names it.
std::string ModelOf(const NamespaceEntry& entry) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  const auto label = std::ranges::find(entry.labels, "model", [](const auto& one) { return one.first; });
  const bool labelled = label != entry.labels.end();
  if (labelled) {
    out.String(label->first);
    out.String(label->second);
  }
  for (const auto& [name, value] : entry.fields) {
    if (labelled || !name.starts_with("model")) continue;
    out.String(name);
    out.String(value);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::uint8_t BitsOf(const NamespaceEntry& entry) {
  return static_cast<std::uint8_t>((entry.trusted_keys ? kTrustedBit : 0) | (entry.strict ? kStrictBit : 0));
}

void PutFields(Encoder& out, const NamespaceEntry& entry) {
  out.List(entry.fields, [&](const auto& field) {
    out.String(field.first);
    out.String(field.second);
  });
}

void PutParts(Encoder& out, const Group& group) {
  out.List(group.part_bytes, [&](std::uint32_t bytes) { out.U32(bytes); });
}

// Each value is one more than the enumerator's, 0 where nothing was said.
void PutWish(Encoder& out, const policy::LowerWish& wish) {
  const WriteRule rule = wish.write.value_or(WriteRule());
  out.U8(static_cast<std::uint8_t>(wish.write ? static_cast<int>(rule.policy) + 1 : 0));
  out.U8(static_cast<std::uint8_t>(rule.uses));
  out.U8(static_cast<std::uint8_t>(wish.admit ? static_cast<int>(*wish.admit) + 1 : 0));
}

// False for what PutWish never writes.
bool TakeWish(Decoder& in, policy::LowerWish& wish) {
  const std::uint8_t write = in.U8(), uses = in.U8(), admit = in.U8();
  if (write != 0) wish.write = WriteRule{static_cast<WritePolicy>(write - 1), uses};
  if (admit != 0) wish.admit = static_cast<Admission>(admit - 1);
  return uses != 0 && CheckWish(wish).ok();
}

void Settle(NamespaceEntry& entry) {
  entry.first_full = kNoGroup;
  for (std::size_t i = 0; i < entry.groups.size(); ++i) {
    Group& group = entry.groups[i];
    if (group.reach == Reach::kFull && entry.first_full == kNoGroup)
      entry.first_full = static_cast<std::uint16_t>(i);
    group.body_bytes = 0;
    for (std::uint32_t bytes : group.part_bytes) group.body_bytes += bytes;
    // Tokens round up: a window that ends inside a block needs the block.
    group.window_blocks =
        group.reach == Reach::kFull ? 0 : arena::WindowBlocks(group.window_tokens, entry.block_tokens);
  }
}

NamespaceEntry EntryOf(const NamespaceSpec& spec) {
  NamespaceEntry entry;
  if (!spec.name.empty()) entry.names.push_back(spec.name);
  entry.fields = Sorted(spec.fields);
  entry.block_tokens = spec.block_tokens;
  entry.trusted_keys = spec.trusted_keys;
  entry.lower = WishOf(spec);
  entry.mesh = spec.mesh;
  entry.copies = spec.copies;
  entry.strict = spec.strict;
  entry.labels = Sorted(spec.labels);
  for (const GroupSpec& from : spec.groups) {
    Group& group = entry.groups.emplace_back();
    group.name = from.name;
    group.reach = from.reach;
    group.window_tokens = from.window_tokens;
    for (std::uint64_t bytes : from.part_bytes) group.part_bytes.push_back(static_cast<std::uint32_t>(bytes));
  }
  Settle(entry);
  return entry;
}

std::string PartsText(const Group& group) {
  if (group.part_bytes.empty()) return "one part of any length";
  std::string text = Text(group.part_bytes.size(), " parts of");
  for (std::uint32_t bytes : group.part_bytes) text += Text(' ', bytes);
  return text;
}

// The first difference of two lists, both values named. They differ.
std::string Difference(const NamespaceEntry& stored, const NamespaceEntry& asked) {
  std::size_t a = 0, b = 0;
  while (a < stored.fields.size() || b < asked.fields.size()) {
    if (b == asked.fields.size() ||
        (a < stored.fields.size() && stored.fields[a].first < asked.fields[b].first)) {
      return Text("field ", stored.fields[a].first, " is '", stored.fields[a].second,
                  "' in the stored list and missing in this one");
    }
    if (a == stored.fields.size() || asked.fields[b].first < stored.fields[a].first) {
      return Text("field ", asked.fields[b].first, " is missing in the stored list and '",
                  asked.fields[b].second, "' in this one");
    }
    if (stored.fields[a].second != asked.fields[b].second) {
      return Text("field ", stored.fields[a].first, " is '", stored.fields[a].second,
                  "' in the stored list and '", asked.fields[b].second, "' in this one");
    }
    ++a;
    ++b;
  }
  if (stored.groups.size() != asked.groups.size()) {
    return Text("the stored list has ", stored.groups.size(), " groups and this one ", asked.groups.size());
  }
  for (std::size_t i = 0; i < stored.groups.size(); ++i) {
    const Group& was = stored.groups[i];
    const Group& is = asked.groups[i];
    if (was.name != is.name) {
      return Text("group ", i, " is '", was.name, "' in the stored list and '", is.name, "' in this one");
    }
    if (was.reach != is.reach) {
      return Text("group ", was.name, " has reach ", ReachName(was.reach), " in the stored list and ",
                  ReachName(is.reach), " in this one");
    }
    if (was.part_bytes != is.part_bytes) {
      return Text("group ", was.name, " has ", PartsText(was), " in the stored list and ", PartsText(is),
                  " in this one");
    }
  }
  if (stored.strict != asked.strict)
    return Text("strict is ", stored.strict, " in the stored list and ", asked.strict, " in this one");
  return Text("trusted_keys is ", stored.trusted_keys, " in the stored list and ", asked.trusted_keys,
              " in this one");
}

bool Rewishes(const NamespaceEntry& stored, const NamespaceEntry& asked) {
  policy::LowerWish after = stored.lower;
  after.Add(asked.lower);
  return after != stored.lower || (asked.mesh && asked.mesh != stored.mesh) ||
         (asked.copies && asked.copies != stored.copies) ||
         (!asked.labels.empty() && asked.labels != stored.labels);
}

constexpr std::uint32_t kMostTokens = std::numeric_limits<std::uint32_t>::max();

// Whether a window of `asked` is wider than the stored one: the widest is kept, so that every user finds his.
// None is wider than kMostTokens, however many blocks that are.
bool Wider(const Group& stored, const Group& asked) {
  return asked.window_blocks > stored.window_blocks && stored.window_tokens < kMostTokens;
}

bool Widens(const NamespaceEntry& stored, const NamespaceEntry& asked) {
  for (std::size_t i = 0; i < stored.groups.size(); ++i) {
    if (Wider(stored.groups[i], asked.groups[i])) return true;
  }
  return false;
}

}  // namespace

std::string NamespaceTable::ListOf(const NamespaceEntry& entry) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U8(BitsOf(entry));
  PutFields(out, entry);
  out.List(entry.groups, [&](const Group& group) {
    out.String(group.name);
    out.U8(static_cast<std::uint8_t>(group.reach));
    PutParts(out, group);
  });
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

NamespaceSpec NamespaceTable::SpecOf(const NamespaceEntry& entry) {
  NamespaceSpec spec;
  spec.fields = entry.fields;
  spec.block_tokens = entry.block_tokens;
  spec.trusted_keys = entry.trusted_keys;
  spec.flash_write = entry.lower.write;
  spec.flash_admit = entry.lower.admit;
  spec.mesh = entry.mesh;
  spec.copies = entry.copies;
  spec.strict = entry.strict;
  spec.labels = entry.labels;
  for (const Group& from : entry.groups) {
    GroupSpec& group = spec.groups.emplace_back();
    group.name = from.name;
    group.reach = from.reach;
    group.window_tokens = from.window_tokens;
    group.part_bytes.assign(from.part_bytes.begin(), from.part_bytes.end());
  }
  return spec;
}

Status NamespaceTable::Validate(const NamespaceSpec& spec) {
  if (spec.name.size() > 2 * kMaxNameBytes || !Printable(spec.name)) {
    return Invalid(Text("name: has ", spec.name.size(), " bytes, and a name has at most ", 2 * kMaxNameBytes,
                        ", all printable"));
  }
  if (spec.copies && (*spec.copies == 0 || *spec.copies > kMaxCopies)) {
    return Invalid(
        Text("copies: ", *spec.copies, " nodes are to have a block, and 1 to ", kMaxCopies, " may be"));
  }
  if (spec.block_tokens == 0) return Invalid("block_tokens: is 0 and a block has at least 1");
  if (Status status = CheckFields(spec); !status.ok()) return status;
  if (Status status = CheckHash(spec); !status.ok()) return status;
  if (Status status = CheckLabels(Sorted(spec.labels)); !status.ok()) return status;
  if (Status status = CheckWish(WishOf(spec)); !status.ok()) return status;
  if (spec.groups.empty() || spec.groups.size() > kMaxGroups) {
    return Invalid(Text("groups: there are ", spec.groups.size(), " and a namespace has 1 to ", kMaxGroups));
  }
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    if (Status status = CheckGroup(spec.groups[i]); !status.ok()) return status;
    for (std::size_t j = 0; j < i; ++j) {
      if (spec.groups[j].name == spec.groups[i].name) {
        return Invalid(Text("group ", spec.groups[i].name, ": stands twice"));
      }
    }
  }
  return Status();
}

Result<NamespaceTable::Lookup> NamespaceTable::Find(const NamespaceSpec& spec) const {
  const NamespaceEntry asked = EntryOf(spec);
  const auto listed = by_list_.find(ListOf(asked));
  const NamespaceEntry* entry = listed != by_list_.end() ? at(listed->second) : nullptr;
  bool names_it = true;
  if (!spec.name.empty()) {
    const auto named = by_name_.find(spec.name);
    if (named != by_name_.end()) {
      const NamespaceEntry* other = at(named->second);
      if (other != entry) {
        return Error(Code::kMismatch, Text("namespace ", spec.name, " stands for another list: ",
                                           Difference(*other, asked), "; use another name or the same list"));
      }
    } else {
      names_it = false;
    }
  }
  if (entry == nullptr) return Lookup{nullptr, true};
  if (!names_it && entry->names.size() >= kMaxNamesOfList) {
    return Error(Code::kBusy, Text("namespace ", spec.name, ": its list has ", entry->names.size(),
                                   " names and the limit is ", kMaxNamesOfList, "; attach with one of them"));
  }
  return Lookup{entry, !names_it || Widens(*entry, asked) || Rewishes(*entry, asked)};
}

NamespaceEntry NamespaceTable::Merged(const NamespaceSpec& spec, std::uint64_t incarnation) const {
  NamespaceEntry asked = EntryOf(spec);
  const auto listed = by_list_.find(ListOf(asked));
  if (listed == by_list_.end()) {
    while (asked.slot < slots_.size() && slots_[asked.slot]) ++asked.slot;
    asked.incarnation = incarnation;
    return asked;
  }
  NamespaceEntry merged = *slots_[listed->second];
  if (!spec.name.empty() && std::ranges::find(merged.names, spec.name) == merged.names.end()) {
    merged.names.push_back(spec.name);
  }
  merged.lower.Add(asked.lower);
  if (asked.mesh) merged.mesh = asked.mesh;
  if (asked.copies) merged.copies = asked.copies;
  if (!asked.labels.empty()) merged.labels = std::move(asked.labels);
  for (std::size_t i = 0; i < merged.groups.size(); ++i) {
    if (!Wider(merged.groups[i], asked.groups[i])) continue;
    // In the stored block length, which is what windows are counted in.
    merged.groups[i].window_tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        std::uint64_t{asked.groups[i].window_blocks} * merged.block_tokens, kMostTokens));
  }
  Settle(merged);
  return merged;
}

void NamespaceTable::Put(NamespaceEntry entry) {
  CISTERN_ASSERT(entry.slot < arena::kMaxNamespaces);
  Settle(entry);
  if (entry.slot >= slots_.size()) slots_.resize(entry.slot + 1);
  Forget(entry.slot);
  by_list_[ListOf(entry)] = entry.slot;
  for (const std::string& name : entry.names) by_name_[name] = entry.slot;
  const std::uint32_t slot = entry.slot;
  kin_.resize(slots_.size());
  if (std::string model = ModelOf(entry); !model.empty()) {
    kin_[slot] = &by_model_[std::move(model)];
    kin_[slot]->push_back(slot);
  }
  put_numbers_.resize(slots_.size());
  put_numbers_[slot] = ++puts_;
  slots_[slot] = std::move(entry);
  ++size_;
}

void NamespaceTable::Forget(std::uint32_t slot) {
  if (at(slot) == nullptr) return;
  by_list_.erase(ListOf(*slots_[slot]));
  for (const std::string& name : slots_[slot]->names) by_name_.erase(name);
  if (std::vector<std::uint32_t>* kin = std::exchange(kin_[slot], nullptr)) {
    std::erase(*kin, slot);
    if (kin->empty()) by_model_.erase(ModelOf(*slots_[slot]));
  }
  slots_[slot].reset();
  --size_;
}

void NamespaceTable::SetIncarnation(std::uint32_t slot, std::uint64_t incarnation) {
  CISTERN_ASSERT(at(slot) != nullptr);
  slots_[slot]->incarnation = incarnation;
}

std::uint64_t NamespaceTable::Fingerprint(const NamespaceEntry& entry) {
  // FNV-1a, as a hash table of any language has it.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : ListOf(entry)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string NamespaceTable::FingerprintText(std::uint64_t fingerprint) {
  const std::string digits = Hex(fingerprint).substr(2);
  return std::string(16 - digits.size(), '0') + digits;
}

std::vector<std::byte> NamespaceTable::Encode(const NamespaceEntry& entry) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  const bool of_cell = entry.mesh.has_value() || entry.strict || entry.copies;
  out.U8(entry.copies ? kEntryVersion : of_cell ? 2 : 1);
  out.U8(BitsOf(entry));
  out.U32(entry.slot);
  out.U64(entry.incarnation);
  out.U32(entry.block_tokens);
  out.List(entry.names, [&](const std::string& name) { out.String(name); });
  PutFields(out, entry);
  out.List(entry.groups, [&](const Group& group) {
    out.String(group.name);
    out.U8(static_cast<std::uint8_t>(group.reach));
    out.U32(group.window_tokens);
    PutParts(out, group);
  });
  // Of version 1 only where something was said: an entry without it is as nodes wrote it before there was
  // one.
  if (of_cell || entry.lower != policy::LowerWish{}) PutWish(out, entry.lower);
  if (of_cell) out.U8(static_cast<std::uint8_t>(entry.mesh ? 1 + *entry.mesh : 0));
  if (entry.copies) out.U8(static_cast<std::uint8_t>(*entry.copies));
  return bytes;
}

std::optional<NamespaceEntry> NamespaceTable::Decode(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  NamespaceEntry entry;
  const std::uint8_t version = in.U8();
  if (version == 0 || version > kEntryVersion) return std::nullopt;
  const std::uint8_t bits = in.U8();
  entry.trusted_keys = version == 1 ? bits != 0 : (bits & kTrustedBit) != 0;
  entry.strict = version > 1 && (bits & kStrictBit) != 0;
  entry.slot = in.U32();
  entry.incarnation = in.U64();
  entry.block_tokens = in.U32();
  in.List(entry.names, kMaxNamesOfList, [&](std::string& name) { name = in.String(2 * kMaxNameBytes); });
  in.List(entry.fields, kMaxFields, [&](auto& field) {
    field.first = in.String(kMaxFieldBytes);
    field.second = in.String(kMaxFieldBytes);
  });
  in.List(entry.groups, kMaxGroups, [&](Group& group) {
    group.name = in.String(kMaxNameBytes);
    group.reach = static_cast<Reach>(in.U8());
    group.window_tokens = in.U32();
    in.List(group.part_bytes, kMaxGroupParts, [&](std::uint32_t& part) { part = in.U32(); });
  });
  bool known_wish = (version == 1 && in.done()) || TakeWish(in, entry.lower);
  if (version > 1) {
    const std::uint8_t mesh = in.U8();
    if (mesh != 0) entry.mesh = mesh == 2;
    known_wish = known_wish && mesh <= 2;
  }
  if (version > 2) {
    entry.copies = in.U8();
    known_wish = known_wish && *entry.copies > 0 && *entry.copies <= kMaxCopies;
  }
  if (!known_wish || !in.done() || entry.slot >= arena::kMaxNamespaces || entry.incarnation == 0 ||
      entry.block_tokens == 0 || entry.groups.empty()) {
    return std::nullopt;
  }
  for (const Group& group : entry.groups) {
    if (group.reach != Reach::kFull && group.reach != Reach::kWindow) return std::nullopt;
    if (group.reach == Reach::kWindow && group.window_tokens == 0) return std::nullopt;
    std::uint64_t body = 0;
    for (std::uint32_t part : group.part_bytes) {
      if (part == 0 || (body += part) > kMaxBodyBytes) return std::nullopt;
    }
  }
  Settle(entry);
  return entry;
}

std::optional<std::uint32_t> NamespaceTable::SlotOf(std::span<const std::byte> bytes) {
  constexpr std::size_t kSlotAt = 2;
  if (bytes.size() < kSlotAt + sizeof(std::uint32_t)) return std::nullopt;
  return LoadAt<std::uint32_t>(bytes.data(), kSlotAt);
}

std::vector<std::byte> NamespaceTable::EncodeLabels(const NamespaceEntry& entry) {
  std::vector<std::byte> bytes;
  if (entry.labels.empty()) return bytes;
  Encoder out(bytes);
  out.U32(entry.slot);
  out.List(entry.labels, [&](const auto& label) {
    out.String(label.first);
    out.String(label.second);
  });
  return bytes;
}

std::optional<NamespaceTable::Labels> NamespaceTable::DecodeLabels(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  Labels read;
  read.slot = in.U32();
  in.List(read.labels, kMaxLabels, [&](auto& label) {
    label.first = in.String(kMaxLabelBytes);
    label.second = in.String(kMaxLabelBytes);
  });
  const bool known = in.done() && !read.labels.empty() && std::ranges::is_sorted(read.labels) &&
                     CheckLabels(read.labels).ok();
  return known ? std::optional(std::move(read)) : std::nullopt;
}

}  // namespace cistern::catalog
