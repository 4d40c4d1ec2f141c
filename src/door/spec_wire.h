// SPDX-License-Identifier: Apache-2.0
// A namespace's specification as bytes: what kAttach carries. Little-endian 32-bit counts and lengths,
// strings as length and bytes; docs/formats/door.md has the order. Reading stays inside the bytes it is given
// and inside the limits of cistern/namespace.h whatever the bytes say; whether the list means anything is the
// store's to judge.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "cistern/namespace.h"
#include "cistern/status.h"

namespace cistern::door {

inline constexpr std::uint32_t kSpecWireVersion = 1;
inline constexpr std::uint32_t kMaxSpecBytes = 80u << 10;
inline constexpr std::uint32_t kMaxSpecFields = 256;
inline constexpr std::uint32_t kMaxSpecFieldBytes = 64u << 10;  // names and values of all fields
inline constexpr std::uint32_t kMaxSpecNameBytes = 4096;        // of the namespace or of a group
inline constexpr std::uint32_t kMaxSpecGroups = 8;
inline constexpr std::uint32_t kMaxSpecParts = 64;

namespace wire {

inline void Put32(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}
inline void Put64(std::string& out, std::uint64_t value) {
  Put32(out, static_cast<std::uint32_t>(value));
  Put32(out, static_cast<std::uint32_t>(value >> 32));
}
inline void PutString(std::string& out, std::string_view text) {
  Put32(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

// Takes values off the front of bytes; once they end early it gives zeros and says so.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint32_t Take32() {
    std::uint32_t value = 0;
    for (const std::byte b : Take(4)) value = value >> 8 | static_cast<std::uint32_t>(b) << 24;
    return value;
  }
  std::uint64_t Take64() {
    std::uint64_t low = Take32();
    return low | std::uint64_t{Take32()} << 32;
  }
  std::string TakeString(std::uint32_t limit) {
    std::uint32_t length = Take32();
    if (length > limit) short_ = true;
    std::span<const std::byte> text = Take(length);
    return std::string(reinterpret_cast<const char*>(text.data()), text.size());
  }
  bool ended_early() const { return short_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> Take(std::size_t n) {
    if (short_ || n > bytes_.size()) {
      short_ = true;
      return {};
    }
    std::span<const std::byte> taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }

  std::span<const std::byte> bytes_;
  bool short_ = false;
};

// kInvalid when `count` of `what` is above its limit.
inline Status CheckCount(std::string_view what, std::uint64_t count, std::uint64_t limit) {
  if (count <= limit) return Status();
  return Status(Code::kInvalid, Text("the namespace has ", count, " ", what, ", the limit is ", limit));
}

}  // namespace wire

// kInvalid names what is above its limit.
inline Result<std::string> EncodeSpec(const NamespaceSpec& spec) {
  std::uint64_t field_bytes = 0;
  for (const auto& [name, value] : spec.fields) field_bytes += name.size() + value.size();
  for (Status status :
       {wire::CheckCount("fields", spec.fields.size(), kMaxSpecFields),
        wire::CheckCount("bytes of fields", field_bytes, kMaxSpecFieldBytes),
        wire::CheckCount("groups", spec.groups.size(), kMaxSpecGroups),
        wire::CheckCount("bytes of name", spec.name.size(), kMaxSpecNameBytes),
        wire::CheckCount("bytes of flash_write", spec.flash_write.size(), kMaxSpecNameBytes),
        wire::CheckCount("bytes of flash_admit", spec.flash_admit.size(), kMaxSpecNameBytes)}) {
    if (!status.ok()) return Error(std::move(status));
  }
  std::string out;
  wire::Put32(out, kSpecWireVersion);
  wire::PutString(out, spec.name);
  wire::Put32(out, spec.block_tokens);
  wire::Put32(out, spec.trusted_keys ? 1 : 0);
  wire::Put32(out, static_cast<std::uint32_t>(spec.fields.size()));
  for (const auto& [name, value] : spec.fields) {
    wire::PutString(out, name);
    wire::PutString(out, value);
  }
  wire::Put32(out, static_cast<std::uint32_t>(spec.groups.size()));
  for (const GroupSpec& group : spec.groups) {
    Status status = wire::CheckCount("bytes of a group's name", group.name.size(), kMaxSpecNameBytes);
    if (status.ok()) status = wire::CheckCount("parts in a group", group.part_bytes.size(), kMaxSpecParts);
    if (!status.ok()) return Error(std::move(status));
    wire::PutString(out, group.name);
    wire::Put32(out, static_cast<std::uint32_t>(group.reach));
    wire::Put32(out, group.window_tokens);
    wire::Put32(out, static_cast<std::uint32_t>(group.part_bytes.size()));
    for (std::uint64_t bytes : group.part_bytes) wire::Put64(out, bytes);
  }
  // Last, and only where something is said: an older node reads a list that says nothing of it.
  if (!spec.flash_write.empty() || !spec.flash_admit.empty()) {
    wire::PutString(out, spec.flash_write);
    wire::PutString(out, spec.flash_admit);
  }
  if (out.size() > kMaxSpecBytes) return Error(wire::CheckCount("bytes", out.size(), kMaxSpecBytes));
  return out;
}

// kMismatch for another version, kInvalid for bytes that are no specification. `bytes` is a private copy.
inline Result<NamespaceSpec> DecodeSpec(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxSpecBytes) return Error(wire::CheckCount("bytes", bytes.size(), kMaxSpecBytes));
  wire::Cursor in(bytes);
  std::uint32_t version = in.Take32();
  if (version != kSpecWireVersion)
    return Error(Code::kMismatch,
                 Text("namespace list of version ", version, ", this node reads ", kSpecWireVersion));
  NamespaceSpec spec;
  spec.name = in.TakeString(kMaxSpecNameBytes);
  spec.block_tokens = in.Take32();
  spec.trusted_keys = in.Take32() != 0;
  std::uint32_t fields = in.Take32();
  if (Status status = wire::CheckCount("fields", fields, kMaxSpecFields); !status.ok())
    return Error(std::move(status));
  for (std::uint32_t i = 0; i < fields && !in.ended_early(); ++i) {
    std::string name = in.TakeString(kMaxSpecFieldBytes);
    spec.fields.emplace_back(std::move(name), in.TakeString(kMaxSpecFieldBytes));
  }
  std::uint32_t groups = in.Take32();
  if (Status status = wire::CheckCount("groups", groups, kMaxSpecGroups); !status.ok())
    return Error(std::move(status));
  for (std::uint32_t i = 0; i < groups && !in.ended_early(); ++i) {
    GroupSpec group;
    group.name = in.TakeString(kMaxSpecNameBytes);
    std::uint32_t reach = in.Take32();
    if (reach > static_cast<std::uint32_t>(Reach::kLastState))
      return Error(Code::kInvalid, Text("group ", i, " has reach ", reach, ", the last one known is ",
                                        static_cast<std::uint32_t>(Reach::kLastState)));
    group.reach = static_cast<Reach>(reach);
    group.window_tokens = in.Take32();
    std::uint32_t parts = in.Take32();
    if (Status status = wire::CheckCount("parts in a group", parts, kMaxSpecParts); !status.ok())
      return Error(std::move(status));
    for (std::uint32_t part = 0; part < parts; ++part) group.part_bytes.push_back(in.Take64());
    spec.groups.push_back(std::move(group));
  }
  if (!in.ended_early() && in.left() > 0) {
    spec.flash_write = in.TakeString(kMaxSpecNameBytes);
    spec.flash_admit = in.TakeString(kMaxSpecNameBytes);
  }
  if (in.ended_early())
    return Error(Code::kInvalid, Text("namespace list: ", bytes.size(), " bytes end early"));
  if (in.left() > 0) return Error(Code::kInvalid, Text("namespace list: ", in.left(), " bytes too many"));
  return spec;
}

}  // namespace cistern::door
