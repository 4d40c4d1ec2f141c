// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_keys.h"

#include <openssl/evp.h>

#include <algorithm>

#include "base/assert.h"
#include "base/codec.h"
#include "base/format.h"

namespace cistern::mesh {
namespace {

constexpr std::uint16_t kVersion = 1;  // of each value; later ones add fields behind
constexpr std::string_view kCheckLabel = "cistern cell check";

std::string TextOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string SixteenDigits(std::uint64_t number) {
  const std::string digits = Hex(number).substr(2);
  return std::string(16 - digits.size(), '0') + digits;
}

// What of a value stands behind its version; bytes that say no version that can be read: none.
std::optional<Decoder> Read(std::string_view value) {
  Decoder in(std::as_bytes(std::span(value)));
  if (in.U16() < kVersion) return std::nullopt;
  return in;
}

}  // namespace

std::string CellKeys::BatchName(std::uint64_t process_number, std::uint64_t n) {
  return SixteenDigits(process_number) + "-" + SixteenDigits(n);
}

std::string_view CellKeys::IdOf(std::string_view key) const {
  const std::string members = Members();
  return key.starts_with(members) ? key.substr(members.size()) : std::string_view();
}

HistoryValue::Check HistoryValue::CheckOf(std::uint64_t number, const net::CellKey* key) {
  std::vector<std::byte> input;
  Encoder out(input);
  out.Bytes(std::as_bytes(std::span(kCheckLabel)));
  out.U64(number);
  if (key != nullptr) out.Bytes(key->bytes);
  Check check;
  CISTERN_ASSERT(EVP_Digest(input.data(), input.size(), reinterpret_cast<unsigned char*>(check.data()),
                            nullptr, EVP_sha256(), nullptr) == 1);
  return check;
}

std::vector<HistoryValue::Check> HistoryValue::ChecksOf(std::uint64_t number,
                                                        std::span<const net::CellKey> keys) {
  std::vector<Check> checks;
  for (const net::CellKey& key : keys) checks.push_back(CheckOf(number, &key));
  if (keys.empty()) checks.push_back(CheckOf(number, nullptr));
  return checks;
}

std::vector<HistoryValue::Check> HistoryValue::ChecksWith(std::span<const net::CellKey> keys) const {
  const std::vector<Check> own = ChecksOf(number, keys);
  if (const auto at = std::ranges::find(checks, own.front()); own.size() == 1 && at != checks.end())
    return {at, checks.end()};
  std::vector<Check> made;
  for (const Check& check : checks) {
    if (std::ranges::find(own, check) == own.end()) made.push_back(check);
  }
  made.insert(made.end(), own.rbegin(), own.rend());
  while (made.size() > kMaxChecks) made.erase(made.begin());
  return made;
}

std::string HistoryValue::Encode() const {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U16(kVersion);
  out.U64(number);
  out.List(checks, [&](const Check& check) { out.Bytes(check); });
  return TextOf(bytes);
}

std::optional<HistoryValue> HistoryValue::Decode(std::string_view value) {
  std::optional<Decoder> in = Read(value);
  if (!in) return std::nullopt;
  HistoryValue made;
  made.number = in->U64();
  in->List(made.checks, kMaxChecks, [&](Check& check) {
    const std::span<const std::byte> bytes = in->Bytes(check.size());
    if (in->ok()) std::ranges::copy(bytes, check.begin());
  });
  if (!in->ok() || made.number == 0) return std::nullopt;
  return made;
}

std::string CellFloor::Encode() const {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U16(kVersion);
  out.U64(static_cast<std::uint64_t>(drops));
  out.U64(static_cast<std::uint64_t>(ends));
  return TextOf(bytes);
}

std::optional<CellFloor> CellFloor::Decode(std::string_view value) {
  std::optional<Decoder> in = Read(value);
  if (!in) return std::nullopt;
  CellFloor made;
  made.drops = static_cast<std::int64_t>(in->U64());
  made.ends = static_cast<std::int64_t>(in->U64());
  if (!in->ok() || made.drops < 0 || made.ends < 0) return std::nullopt;
  return made;
}

std::string MemberValue::Encode() const {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U16(kVersion);
  out.U64(process_number);
  out.Bytes(boot_id);
  out.String(address);
  out.String(zone);
  return TextOf(bytes);
}

std::optional<MemberValue> MemberValue::Decode(std::string_view value) {
  std::optional<Decoder> in = Read(value);
  if (!in) return std::nullopt;
  MemberValue made;
  made.process_number = in->U64();
  const std::span<const std::byte> boot_id = in->Bytes(made.boot_id.size());
  if (!in->ok()) return std::nullopt;
  std::ranges::copy(boot_id, made.boot_id.begin());
  made.address = in->String(kMaxAddressBytes);
  made.zone = in->String(kMaxMemberId);
  if (!in->ok()) return std::nullopt;
  return made;
}

Status ValidateMemberId(std::string_view id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!id.empty() && id.size() <= kMaxMemberId && std::ranges::all_of(id, allowed)) return Status();
  return Status(Code::kInvalid, Text("member id '", id, "': it has ", id.size(), " bytes and may have 1 to ",
                                     kMaxMemberId, " of letters, digits, '-', '_' and '.'"));
}

}  // namespace cistern::mesh
