// SPDX-License-Identifier: Apache-2.0
// The keys of a cell in etcd and their values, as docs/formats/cell.md has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/status.h"
#include "net/tls.h"

namespace cistern::mesh {

inline constexpr std::size_t kMaxMemberId = 63;
inline constexpr std::size_t kMaxAddressBytes = 255;

// Where the keys of a cell lie.
class CellKeys final {
 public:
  // All of them begin with `prefix`, which ends with a slash.
  explicit CellKeys(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string& prefix() const { return prefix_; }
  std::string History() const { return prefix_ + "history"; }
  std::string Floor() const { return prefix_ + "floor"; }
  std::string Members() const { return prefix_ + "members/"; }
  std::string MemberKey(std::string_view id) const { return Members().append(id); }
  std::string Drops() const { return prefix_ + "drops/"; }
  std::string Ends() const { return prefix_ + "ends/"; }
  // The key whose value is the list that a namespace's name stands for.
  std::string NameKey(std::string_view tenant, std::string_view name) const {
    return (prefix_ + "names/").append(tenant).append("/").append(name);
  }
  // No two batches have one name: of the n-th of a start of a member.
  static std::string BatchName(std::uint64_t process_number, std::uint64_t n);
  // The id in a member's key; empty: it is none.
  std::string_view IdOf(std::string_view key) const;
  bool IsBatch(std::string_view key) const { return key.starts_with(Drops()) || key.starts_with(Ends()); }

 private:
  std::string prefix_;
};

// The value of `history`. Revisions are compared within one history only: those of two mean nothing to each
// other.
struct HistoryValue {
  using Check = std::array<std::byte, 32>;
  static constexpr std::size_t kMaxChecks = 4;

  std::uint64_t number = 0;   // random, not 0
  std::vector<Check> checks;  // of the cell's keys, of the one that is used last

  // Of a key under this number; a cell without keys has the check of no key.
  static Check CheckOf(std::uint64_t number, const net::CellKey* key);
  // The checks that the keys would have.
  static std::vector<Check> ChecksOf(std::uint64_t number, std::span<const net::CellKey> keys);
  // The checks once a member with these keys has joined. Several are added, the first, which is used, behind
  // the others; what lies before the only one of a member is of keys that the cell has left.
  std::vector<Check> ChecksWith(std::span<const net::CellKey> keys) const;

  std::string Encode() const;
  static std::optional<HistoryValue> Decode(std::string_view value);
  friend bool operator==(const HistoryValue&, const HistoryValue&) = default;
};

// Up to which revision drops and ends are no longer kept.
struct CellFloor {
  std::int64_t drops = 0, ends = 0;
  std::string Encode() const;
  static std::optional<CellFloor> Decode(std::string_view value);
  friend bool operator==(const CellFloor&, const CellFloor&) = default;
};

// A member as the others see it.
struct MemberValue {
  std::uint64_t process_number = 0;     // random, of this start
  std::array<std::byte, 16> boot_id{};  // of its host
  std::string address;                  // where it listens for control connections
  std::string zone;
  std::string Encode() const;
  static std::optional<MemberValue> Decode(std::string_view value);
  friend bool operator==(const MemberValue&, const MemberValue&) = default;
};

// Letters, digits, '-', '_' and '.', at most kMaxMemberId.
Status ValidateMemberId(std::string_view id);

}  // namespace cistern::mesh
