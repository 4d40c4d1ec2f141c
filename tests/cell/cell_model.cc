// SPDX-License-Identifier: Apache-2.0
#include "cell_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/random_bytes.h"

namespace cistern::mesh {

BlockKey CellModel::KeyOf(std::uint64_t number) {
  std::array<std::byte, 16> bytes{};
  StoreAt(bytes.data(), 0, number);
  return *BlockKey::FromBytes(bytes);
}

std::vector<BlockKey> CellModel::KeysOf(std::span<const std::uint64_t> chain) {
  std::vector<BlockKey> keys;
  for (const std::uint64_t number : chain) keys.push_back(KeyOf(number));
  return keys;
}

std::vector<std::byte> CellModel::BodyOf(std::uint64_t version, std::uint64_t number) {
  std::vector<std::byte> body(number % 3 == 0 ? 9'000 : 4'000);
  FillRandom(version * 31 + 7, body);
  StoreAt(body.data(), 0, version);
  return body;
}

std::uint64_t CellModel::Put(std::size_t space, Chain chain, bool has_ttl) {
  const std::uint64_t number = chain.back();
  if (has_ttl) with_ttl_.insert(number);
  known_[space].insert(number);
  chains_[number] = chain;
  versions_.push_back({.space = space, .chain = std::move(chain)});
  return versions_.size() - 1;
}

void CellModel::NotePut(std::uint64_t version, Instant expires) {
  versions_[version].order = ++order_;
  versions_[version].expires = expires;
}

void CellModel::NoteUse(std::size_t space, const Chain& chain, std::uint64_t conversation, bool ended) {
  if (ended) ++order_;
  for (const std::uint64_t number : chain) users_[{space, number}][conversation] = ended ? order_ : 0;
}

void CellModel::NoteTold(const RealNode& node, std::size_t space, const Chain& chain,
                         std::uint64_t conversation) {
  for (const std::uint64_t number : chain) told_[&node].insert({space, number, conversation});
}

void CellModel::NoteStart(const RealNode& node) {
  for (const Told& told : std::exchange(told_[&node], {})) {
    auto& users = users_[{told.space, told.number}];
    const bool writer_ends = std::ranges::any_of(drops_, [&](const Drop& drop) {
      return drop.drop.is_end() && drop.space == told.space && drop.drop.conversation != told.conversation &&
             users.contains(drop.drop.conversation);
    });
    if (writer_ends) users[0] = ++order_;
  }
}

std::size_t CellModel::Ask(Drop drop) {
  drop.order = ++order_;
  drops_.push_back(std::move(drop));
  return drops_.size() - 1;
}

void CellModel::Acknowledge(std::size_t which, std::uint64_t history, std::set<const RealNode*> bound) {
  Drop& drop = drops_[which];
  drop.acknowledged = true;
  drop.history = history;
  drop.etcd_life = etcd_life_;
  drop.bound = std::move(bound);
  if (drop.drop.is_end()) ends_[{drop.space, drop.drop.conversation}] = which;
  for (Version& version : versions_) {
    std::vector<std::size_t> by = EndedBy(version, which);
    if (!by.empty()) version.dead_by.push_back(std::move(by));
  }
}

void CellModel::NoteCopy(const RealNode& original, const RealNode& copy) {
  for (Drop& drop : drops_) {
    if (drop.bound.contains(&original)) drop.bound.insert(&copy);
  }
  told_[&copy] = told_[&original];
}

std::vector<std::size_t> CellModel::EndedBy(const Version& version, std::size_t which) const {
  const Drop& drop = drops_[which];
  if (drop.space != version.space || version.order == 0 || version.order > drop.order) return {};
  const auto covered = std::ranges::find_first_of(version.chain, drop.numbers) != version.chain.end();
  if (drop.drop.what == CellDrop::What::kNamespace || covered) return {which};
  const auto& users = users_.at({version.space, version.chain.back()});
  if (!drop.drop.is_end() || !users.contains(drop.drop.conversation)) return {};
  std::vector<std::size_t> ends;
  for (const auto& [conversation, used] : users) {
    const auto end = ends_.find({version.space, conversation});
    if (used == 0 || end == ends_.end() || drops_[end->second].order < used) return {};
    ends.push_back(end->second);
  }
  return ends;
}

std::set<std::size_t> CellModel::Binding(const RealNode& node, std::size_t space,
                                         const Standing& standing) const {
  std::set<std::size_t> binding;
  for (std::size_t which = 0; which < drops_.size(); ++which) {
    const Drop& one = drops_[which];
    if (!one.acknowledged || one.space != space) continue;
    const bool knows = one.etcd_life == etcd_life_ || standing.history != one.history;
    if (one.bound.contains(&node) || (knows && (standing.of_members || standing.strict)))
      binding.insert(which);
  }
  return binding;
}

bool CellModel::Stays(std::size_t space, std::uint64_t number) const {
  const Chain& chain = chains_.at(number);
  if (std::ranges::any_of(chain, [&](std::uint64_t at) { return has_ttl(at); })) return false;
  return std::ranges::none_of(drops_, [&](const Drop& drop) {
    if (drop.space != space) return false;
    if (drop.drop.what == CellDrop::What::kNamespace) return true;
    if (!drop.drop.is_end()) return std::ranges::find_first_of(chain, drop.numbers) != chain.end();
    return std::ranges::any_of(chain, [&](std::uint64_t at) {
      const auto users = users_.find({space, at});
      return users != users_.end() && users->second.contains(drop.drop.conversation);
    });
  });
}

std::string CellModel::Check(std::size_t space, std::uint64_t number, std::span<const std::byte> body,
                             const std::set<std::size_t>& binding, Instant asked) const {
  const auto version = body.size() < 8 ? versions_.size() : LoadAt<std::uint64_t>(body.data(), 0);
  const bool exact = version < versions_.size() && versions_[version].space == space &&
                     versions_[version].chain.back() == number &&
                     std::ranges::equal(body, BodyOf(version, number));
  if (!exact) return Text("promise 1: it reads block ", number, " as it was never put");
  const Version& read = versions_[version];
  if (asked >= read.expires) return Text("expiry: it reads block ", number, " after its time");
  for (const std::vector<std::size_t>& by : read.dead_by) {
    // Another conversation may have used it since, at a member that had yet to hear of the ends.
    if (EndedBy(read, by.front()).empty()) continue;
    if (std::ranges::all_of(by, [&](std::size_t which) { return binding.contains(which); }))
      return Text("R10: it reads version ", version, " of block ", number, ", which drop ", by.front(),
                  " ended for it");
  }
  return {};
}

}  // namespace cistern::mesh
