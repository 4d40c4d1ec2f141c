// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_drop.h"

#include <algorithm>
#include <span>

#include "base/codec.h"
#include "base/format.h"

namespace cistern::mesh {
namespace {

constexpr std::uint16_t kBatchVersion = 1;

std::span<const std::byte> BytesOfText(std::string_view text) { return std::as_bytes(std::span(text)); }

void Put(Encoder& out, const CellDrop& drop) {
  out.U8(static_cast<std::uint8_t>(drop.what));
  out.String(drop.name.tenant);
  out.Bytes(drop.name.list_hash);
  if (drop.is_end()) {
    out.U64(drop.conversation);
  } else if (drop.what == CellDrop::What::kKeys) {
    out.List(drop.keys, [&](const BlockKey& key) {
      out.U8(key.length);
      out.Bytes(key.view());
    });
  }
}

bool Take(Decoder& in, CellDrop* drop) {
  drop->what = static_cast<CellDrop::What>(in.U8());
  drop->name.tenant = in.String(DropLimits::kTenantBytes);
  const std::span<const std::byte> hash = in.Bytes(drop->name.list_hash.size());
  if (!in.ok()) return false;
  std::ranges::copy(hash, drop->name.list_hash.begin());
  bool keys_are_whole = true;
  switch (drop->what) {
    case CellDrop::What::kNamespace: break;
    case CellDrop::What::kConversation: drop->conversation = in.U64(); break;
    case CellDrop::What::kKeys:
      in.List(drop->keys, DropLimits::kKeysOfDrop, [&](BlockKey& key) {
        const Result<BlockKey> taken = BlockKey::FromBytes(in.Bytes(in.U8()));
        if (taken) key = *taken;
        keys_are_whole = keys_are_whole && taken.has_value();
      });
      break;
    default: return false;  // of a later version
  }
  return in.ok() && keys_are_whole && drop->Validate().ok();
}

}  // namespace

Status CellDrop::Validate() const {
  if (name.tenant.empty() || name.tenant.size() > DropLimits::kTenantBytes)
    return Status(Code::kInvalid, Text("drop: the tenant's name has ", name.tenant.size(),
                                       " bytes and may have 1 to ", DropLimits::kTenantBytes));
  if (what != What::kKeys) return Status();
  if (keys.empty()) return Status(Code::kInvalid, "drop: no key is named");
  for (const BlockKey& key : keys) {
    if (key.none()) return Status(Code::kInvalid, "drop: one of the keys has no bytes and a key has 1 to 32");
  }
  return Status();
}

std::size_t EncodedBytes(const CellDrop& drop) {
  std::size_t bytes = 1 + 4 + drop.name.tenant.size() + drop.name.list_hash.size();
  if (drop.is_end()) bytes += 8;
  if (drop.what == CellDrop::What::kKeys) bytes += 4;
  for (const BlockKey& key : drop.keys) bytes += 1 + key.length;
  return bytes;
}

std::string EncodeBatch(const std::vector<CellDrop>& drops) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U16(kBatchVersion);
  out.List(drops, [&](const CellDrop& drop) { Put(out, drop); });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<std::vector<CellDrop>> DecodeBatch(std::string_view value) {
  Decoder in(BytesOfText(value));
  if (in.U16() != kBatchVersion) return std::nullopt;
  std::vector<CellDrop> drops;
  const std::uint32_t count = in.Count(DropLimits::kDropsOfBatch);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!Take(in, &drops.emplace_back())) return std::nullopt;
  }
  if (!in.done()) return std::nullopt;
  return drops;
}

}  // namespace cistern::mesh
