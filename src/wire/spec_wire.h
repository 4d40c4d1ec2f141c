// SPDX-License-Identifier: Apache-2.0
// A namespace's specification as bytes (base/codec.h): what kAttach carries. docs/formats/session.md has the
// order. Decoding stays inside the bytes it is given and inside the limits below and of base/limits.h
// whatever the bytes say; whether the list means anything is the store's to judge.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/format.h"
#include "base/limits.h"
#include "cistern/namespace.h"
#include "cistern/policy.h"
#include "cistern/status.h"

namespace cistern::wire {

// 1, or 2 where something is said that a node of version 1 would not keep to: it refuses that. 3 where copies
// are said, 4 where there are labels: a client leaves these out for a node that does not know them.
inline constexpr std::uint32_t kSpecWireVersion = 4;
inline constexpr std::uint32_t kMeshUnsaid = 0, kMeshOff = 1, kMeshOn = 2;
inline constexpr std::uint32_t kMaxSpecBytes = 80u << 10;
inline constexpr std::uint32_t kMaxSpecNameBytes = 4096;  // of the namespace or of a group

// kInvalid when `count` of `what` is above its limit.
inline Status CheckCount(std::string_view what, std::uint64_t count, std::uint64_t limit) {
  if (count <= limit) return Status();
  return Status(Code::kInvalid, Text("the namespace has ", count, " ", what, ", the limit is ", limit));
}

// kInvalid names what is above its limit.
inline Result<std::vector<std::byte>> EncodeSpec(const NamespaceSpec& spec) {
  std::uint64_t field_bytes = 0;
  for (const auto& [name, value] : spec.fields) field_bytes += name.size() + value.size();
  for (Status status : {CheckCount("fields", spec.fields.size(), kMaxFields),
                        CheckCount("bytes of fields", field_bytes, kMaxFieldBytes),
                        CheckCount("groups", spec.groups.size(), kMaxGroups),
                        CheckCount("labels", spec.labels.size(), kMaxLabels),
                        CheckCount("bytes of name", spec.name.size(), kMaxSpecNameBytes)}) {
    if (!status.ok()) return Error(std::move(status));
  }
  for (const auto& [name, value] : spec.labels) {
    Status status = CheckCount("bytes of a label", name.size() + value.size(), kMaxLabelBytes);
    if (!status.ok()) return Error(std::move(status));
  }
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  const bool labelled = !spec.labels.empty();
  const bool copied = spec.copies || labelled;
  const bool of_cell = spec.mesh.has_value() || spec.strict || copied;
  out.U32(labelled ? kSpecWireVersion : copied ? 3 : of_cell ? 2 : 1);
  out.String(spec.name);
  out.U32(spec.block_tokens);
  out.U32(spec.trusted_keys ? 1 : 0);
  out.List(spec.fields, [&](const auto& field) {
    out.String(field.first);
    out.String(field.second);
  });
  out.U32(static_cast<std::uint32_t>(spec.groups.size()));
  for (const GroupSpec& group : spec.groups) {
    Status status = CheckCount("bytes of a group's name", group.name.size(), kMaxSpecNameBytes);
    if (status.ok()) status = CheckCount("parts in a group", group.part_bytes.size(), kMaxGroupParts);
    if (!status.ok()) return Error(std::move(status));
    out.String(group.name);
    out.U32(static_cast<std::uint32_t>(group.reach));
    out.U32(group.window_tokens);
    out.List(group.part_bytes, [&](std::uint64_t part) { out.U64(part); });
  }
  // Last, and only where something is said: an older node reads a list that says nothing of it.
  if (spec.flash_write || spec.flash_admit || of_cell) {
    out.String(spec.flash_write ? ToString(*spec.flash_write) : "");
    out.String(spec.flash_admit ? ToString(*spec.flash_admit) : "");
  }
  if (of_cell) {
    out.U32(!spec.mesh ? kMeshUnsaid : *spec.mesh ? kMeshOn : kMeshOff);
    out.U32(spec.strict ? 1 : 0);
  }
  if (copied) out.U32(spec.copies.value_or(0));
  if (labelled) {
    out.List(spec.labels, [&](const auto& label) {
      out.String(label.first);
      out.String(label.second);
    });
  }
  if (bytes.size() > kMaxSpecBytes) return Error(CheckCount("bytes", bytes.size(), kMaxSpecBytes));
  return bytes;
}

// A policy's text, empty where nothing is said. kInvalid for an unknown one, and names the field.
template <class T>
Status ReadWish(std::string_view field, Result<T> (*parse)(std::string_view), std::string_view text,
                std::optional<T>& wish) {
  if (text.empty()) return Status();
  Result<T> said = parse(text);
  if (!said) return Status(said.error().code(), Text(field, ": ", said.error().message()));
  wish = *said;
  return Status();
}

// kMismatch for another version, kInvalid for bytes that are no specification. `bytes` is a private copy.
inline Result<NamespaceSpec> DecodeSpec(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxSpecBytes) return Error(CheckCount("bytes", bytes.size(), kMaxSpecBytes));
  Decoder in(bytes);
  std::uint32_t version = in.U32();
  if (version == 0 || version > kSpecWireVersion)
    return Error(Code::kMismatch,
                 Text("namespace list of version ", version, ", this node reads up to ", kSpecWireVersion));
  NamespaceSpec spec;
  spec.name = in.String(kMaxSpecNameBytes);
  spec.block_tokens = in.U32();
  spec.trusted_keys = in.U32() != 0;
  std::uint32_t fields = in.U32();
  if (Status status = CheckCount("fields", fields, kMaxFields); !status.ok()) return Error(std::move(status));
  for (std::uint32_t i = 0; i < fields && in.ok(); ++i) {
    std::string name = in.String(kMaxFieldBytes);
    spec.fields.emplace_back(std::move(name), in.String(kMaxFieldBytes));
  }
  std::uint32_t groups = in.U32();
  if (Status status = CheckCount("groups", groups, kMaxGroups); !status.ok()) return Error(std::move(status));
  for (std::uint32_t i = 0; i < groups && in.ok(); ++i) {
    GroupSpec group;
    group.name = in.String(kMaxSpecNameBytes);
    std::uint32_t reach = in.U32();
    if (reach > static_cast<std::uint32_t>(Reach::kLastState))
      return Error(Code::kInvalid, Text("group ", i, " has reach ", reach, ", the last one known is ",
                                        static_cast<std::uint32_t>(Reach::kLastState)));
    group.reach = static_cast<Reach>(reach);
    group.window_tokens = in.U32();
    std::uint32_t parts = in.U32();
    if (Status status = CheckCount("parts in a group", parts, kMaxGroupParts); !status.ok())
      return Error(std::move(status));
    for (std::uint32_t part = 0; part < parts; ++part) group.part_bytes.push_back(in.U64());
    spec.groups.push_back(std::move(group));
  }
  std::string flash_write, flash_admit;
  if (in.ok() && in.left() > 0) {
    flash_write = in.String(kMaxSpecNameBytes);
    flash_admit = in.String(kMaxSpecNameBytes);
  }
  if (version >= 2) {
    const std::uint32_t mesh = in.U32(), strict = in.U32();
    if (in.ok() && (mesh > kMeshOn || strict > 1))
      return Error(Code::kInvalid, Text("namespace list: mesh is ", mesh, " and strict ", strict,
                                        ", which this node does not know"));
    if (mesh != kMeshUnsaid) spec.mesh = mesh == kMeshOn;
    spec.strict = strict != 0;
  }
  if (version >= 3) spec.copies = in.U32();
  if (version >= 4) {
    if (*spec.copies == 0) spec.copies.reset();
    const std::uint32_t labels = in.U32();
    if (Status status = CheckCount("labels", labels, kMaxLabels); !status.ok())
      return Error(std::move(status));
    for (std::uint32_t i = 0; i < labels && in.ok(); ++i) {
      std::string name = in.String(kMaxSpecNameBytes);
      spec.labels.emplace_back(std::move(name), in.String(kMaxSpecNameBytes));
    }
  }
  if (!in.ok())
    return Error(Code::kInvalid,
                 Text("namespace list: ", bytes.size(), " bytes end early, or in a text past its limit"));
  if (in.left() > 0) return Error(Code::kInvalid, Text("namespace list: ", in.left(), " bytes too many"));
  Status status = ReadWish("flash_write", ParseWriteRule, flash_write, spec.flash_write);
  if (status.ok()) status = ReadWish("flash_admit", ParseAdmission, flash_admit, spec.flash_admit);
  if (!status.ok()) return Error(std::move(status));
  return spec;
}

}  // namespace cistern::wire
