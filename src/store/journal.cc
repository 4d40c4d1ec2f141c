// SPDX-License-Identifier: Apache-2.0
#include "store/journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "record/verified_copy.h"

namespace cistern {
namespace {

constexpr std::size_t kFileHeadBytes = 16;
constexpr std::size_t kBatchHeadBytes = 8;   // crc, bytes of records
constexpr std::size_t kRecordHeadBytes = 5;  // payload bytes, kind
constexpr std::size_t kMaxPayloadBytes = 256u << 10;
constexpr std::uint64_t kMaxFileBytes = 256ull << 20;  // far above what kMaxNamespaces and the tombstones take
constexpr std::uint64_t kSlackBytes = 1u << 20;
constexpr std::size_t kIoBytes = 1u << 20;

template <class T>
void PutRaw(std::vector<std::byte>& out, const T& value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
}

template <class T>
T GetRaw(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

constexpr std::size_t kTombstoneBytes = 8 + 8 + 1 + BlockKey::kMaxBytes;

std::optional<Tombstone> DecodeTombstone(std::span<const std::byte> payload) {
  if (payload.size() != kTombstoneBytes) return std::nullopt;
  Tombstone tombstone;
  tombstone.sequence = GetRaw<std::uint64_t>(payload, 0);
  tombstone.incarnation = GetRaw<std::uint64_t>(payload, 8);
  const auto bytes = std::to_integer<std::uint8_t>(payload[16]);
  if (bytes > BlockKey::kMaxBytes) return std::nullopt;
  auto key = BlockKey::FromBytes(payload.subspan(17, bytes));
  if (!key) return std::nullopt;
  tombstone.key = *key;
  return tombstone;
}

// The records of the batch that begins at `at`, or nothing when none that checks does.
std::optional<std::span<const std::byte>> BatchAt(std::span<const std::byte> bytes, std::size_t at) {
  if (bytes.size() - at < kBatchHeadBytes) return std::nullopt;
  const auto size = GetRaw<std::uint32_t>(bytes, at + 4);
  if (size == 0 || size > bytes.size() - at - kBatchHeadBytes) return std::nullopt;
  if (Crc32c(bytes.data() + at + 4, kBatchHeadBytes - 4 + size) != GetRaw<std::uint32_t>(bytes, at)) {
    return std::nullopt;
  }
  return bytes.subspan(at + kBatchHeadBytes, size);
}

// The payload of the first of some records.
std::optional<std::span<const std::byte>> PayloadAt(std::span<const std::byte> records) {
  if (records.size() < kRecordHeadBytes) return std::nullopt;
  const auto size = GetRaw<std::uint32_t>(records, 0);
  if (size > kMaxPayloadBytes || size > records.size() - kRecordHeadBytes) return std::nullopt;
  return records.subspan(kRecordHeadBytes, size);
}

void AppendBatch(std::vector<std::byte>& out, std::span<const std::byte> records) {
  const std::size_t at = out.size();
  PutRaw(out, std::uint32_t{0});
  PutRaw(out, static_cast<std::uint32_t>(records.size()));
  out.insert(out.end(), records.begin(), records.end());
  const std::uint32_t crc = Crc32c(out.data() + at + 4, out.size() - at - 4);
  std::memcpy(out.data() + at, &crc, sizeof(crc));
}

}  // namespace

Journal::Journal(Loop& loop, std::string directory) : loop_(loop), directory_(std::move(directory)) {}

void Journal::Append(std::vector<std::byte>& out, Kind kind, std::span<const std::byte> payload) {
  CISTERN_ASSERT(payload.size() <= kMaxPayloadBytes);
  PutRaw(out, static_cast<std::uint32_t>(payload.size()));
  PutRaw(out, static_cast<std::uint8_t>(kind));
  out.insert(out.end(), payload.begin(), payload.end());
}

void Journal::AppendTombstone(std::vector<std::byte>& out, const Tombstone& tombstone) {
  std::vector<std::byte> payload;
  PutRaw(payload, tombstone.sequence);
  PutRaw(payload, tombstone.incarnation);
  PutRaw(payload, tombstone.key.length);
  PutRaw(payload, tombstone.key.bytes);
  Append(out, Kind::kTombstone, payload);
}

bool Journal::Apply(std::span<const std::byte> bytes, std::size_t* used, Contents& contents) const {
  std::map<std::uint32_t, NamespaceEntry> namespaces;
  std::map<std::uint64_t, Tombstone> tombstones;
  bool whole = true;
  std::span<const std::byte> batch;
  while (*used < bytes.size() || !batch.empty()) {
    if (batch.empty()) {
      const auto next = BatchAt(bytes, *used);
      if (!next) {
        whole = false;
        break;
      }
      batch = *next;
      *used += kBatchHeadBytes + batch.size();
    }
    const auto payload = PayloadAt(batch);
    if (!payload) {
      // It checks, so it was written like that: by nobody who knows this format.
      contents.damaged = true;
      batch = {};
      continue;
    }
    switch (static_cast<Kind>(std::to_integer<std::uint8_t>(batch[4]))) {
      case Kind::kSequences:
        if (payload->size() == 8) {
          contents.sequences_below = std::max(contents.sequences_below, GetRaw<std::uint64_t>(*payload, 0));
        }
        break;
      case Kind::kNamespace:
        if (auto entry = Names::Decode(*payload)) namespaces[entry->slot] = std::move(*entry);
        break;
      case Kind::kTombstone:
        if (auto tombstone = DecodeTombstone(*payload)) tombstones[tombstone->sequence] = *tombstone;
        break;
      case Kind::kTombstoneEnd:
        if (payload->size() == 8) tombstones.erase(GetRaw<std::uint64_t>(*payload, 0));
        break;
    }
    batch = batch.subspan(kRecordHeadBytes + payload->size());
  }
  for (auto& [slot, entry] : namespaces) contents.namespaces.push_back(std::move(entry));
  for (const auto& [sequence, tombstone] : tombstones) contents.tombstones.push_back(tombstone);
  return whole;
}

Task<Result<Journal::Contents>> Journal::Open() {
  const std::string path = directory_ + "/journal";
  auto opened = loop_.Open(path, OpenMode::kCreate);
  if (!opened) co_return std::unexpected(opened.error());
  File file = std::move(*opened);
  const auto size = file.Size();
  if (!size) co_return std::unexpected(size.error());
  if (*size > kMaxFileBytes) {
    co_return Error(Code::kMismatch, Text(path, ": has ", *size, " bytes, more than any journal"));
  }
  Contents contents;
  // Made and not yet written is how a first start that was cut off leaves it.
  if (*size == 0) co_return contents;
  std::vector<std::byte> bytes(*size);
  for (std::size_t at = 0; at < bytes.size(); at += kIoBytes) {
    const auto piece = std::span(bytes).subspan(at, std::min(kIoBytes, bytes.size() - at));
    if (Status status = co_await file.ReadAll(piece, at); !status.ok()) co_return std::unexpected(std::move(status));
  }
  if (bytes.size() < kFileHeadBytes || GetRaw<std::uint64_t>(bytes, 0) != kJournalMagic) {
    co_return Error(Code::kMismatch, Text(path, ": is no journal; move it away to start without what it held"));
  }
  if (const auto version = GetRaw<std::uint64_t>(bytes, 8); version != kJournalVersion) {
    co_return Error(Code::kMismatch, Text(path, ": is of format version ", version, " and this node reads version ",
                                          kJournalVersion, "; use the node that wrote it, or move it away"));
  }
  std::size_t used = kFileHeadBytes;
  if (!Apply(bytes, &used, contents)) {
    // A batch behind the one that does not check: not the end of an append that a crash cut off.
    for (std::size_t at = used + 1; at < bytes.size() && !contents.damaged; ++at) {
      contents.damaged = BatchAt(bytes, at).has_value();
      if ((at - used) % 65536 == 0) co_await Yield();
    }
  }
  co_return contents;
}

Task<Status> Journal::Start(std::vector<NamespaceEntry> namespaces, std::uint64_t sequences_below) {
  namespaces_.clear();
  tombstones_.clear();
  for (const NamespaceEntry& entry : namespaces) namespaces_[entry.slot] = Names::Encode(entry);
  sequences_below_ = sequences_below;
  broken_ = true;
  co_return co_await Flush();
}

Task<Status> Journal::PutNamespace(const NamespaceEntry& entry) {
  std::vector<std::byte> bytes = Names::Encode(entry);
  Append(pending_, Kind::kNamespace, bytes);
  namespaces_[entry.slot] = std::move(bytes);
  co_return co_await Flush();
}

Task<Status> Journal::ReserveSequences(std::uint64_t below) {
  std::vector<std::byte> payload;
  PutRaw(payload, below);
  Append(pending_, Kind::kSequences, payload);
  sequences_below_ = below;
  co_return co_await Flush();
}

Task<Status> Journal::AddTombstone(Tombstone tombstone) {
  AppendTombstone(pending_, tombstone);
  tombstones_[tombstone.sequence] = tombstone;
  co_return co_await Flush();
}

void Journal::EndTombstone(std::uint64_t sequence) {
  if (tombstones_.erase(sequence) == 0) return;
  std::vector<std::byte> payload;
  PutRaw(payload, sequence);
  Append(pending_, Kind::kTombstoneEnd, payload);
}

std::vector<std::byte> Journal::Snapshot() const {
  std::vector<std::byte> records, sequences;
  PutRaw(sequences, sequences_below_);
  Append(records, Kind::kSequences, sequences);
  for (const auto& [slot, bytes] : namespaces_) Append(records, Kind::kNamespace, bytes);
  for (const auto& [sequence, tombstone] : tombstones_) AppendTombstone(records, tombstone);
  std::vector<std::byte> out;
  PutRaw(out, kJournalMagic);
  PutRaw(out, kJournalVersion);
  AppendBatch(out, records);
  return out;
}

// A new file beside the old one, durable before it takes its name: there is always one that is whole.
Task<Status> Journal::Rewrite() {
  const std::string path = directory_ + "/journal";
  const std::string next = path + ".new";
  pending_.clear();
  const std::vector<std::byte> bytes = Snapshot();
  auto opened = loop_.Open(next, OpenMode::kCreateNew);
  if (!opened) {
    // Left behind by a crash in the middle of this.
    if (Status status = loop_.Remove(next); !status.ok()) co_return std::move(opened.error());
    opened = loop_.Open(next, OpenMode::kCreateNew);
    if (!opened) co_return std::move(opened.error());
  }
  File file = std::move(*opened);
  for (std::size_t at = 0; at < bytes.size(); at += kIoBytes) {
    const auto piece = std::span(bytes).subspan(at, std::min(kIoBytes, bytes.size() - at));
    if (Status status = co_await file.WriteAll(piece, at); !status.ok()) co_return status;
  }
  if (Status status = co_await file.Sync(); !status.ok()) co_return status;
  if (Status status = loop_.Rename(next, path); !status.ok()) co_return status;
  if (Status status = co_await loop_.SyncDirectory(directory_); !status.ok()) co_return status;
  file_ = std::move(file);
  end_ = live_bytes_ = bytes.size();
  broken_ = false;
  co_return Status();
}

Task<Status> Journal::WriteOut() {
  // After a failed write nothing is known of the file's end, and appending there could bury records behind a
  // torn one.
  if (broken_ || end_ + pending_.size() > 2 * live_bytes_ + kSlackBytes) {
    broken_ = true;
    co_return co_await Rewrite();
  }
  std::vector<std::byte> bytes;
  if (!pending_.empty()) AppendBatch(bytes, std::exchange(pending_, {}));
  broken_ = true;
  if (Status status = co_await file_.WriteAll(bytes, end_); !status.ok()) co_return status;
  if (Status status = co_await file_.Sync(); !status.ok()) co_return status;
  end_ += bytes.size();
  broken_ = false;
  co_return Status();
}

// Whoever finds nobody flushing writes for all that asked before it began.
Task<Status> Journal::Flush() {
  const std::uint64_t mine = ++asked_;
  Status status;
  while (done_ < mine) {
    if (flushing_) {
      co_await flushed_.Wait();
      continue;
    }
    flushing_ = true;
    const std::uint64_t upto = asked_;
    last_ = co_await WriteOut();
    flushing_ = false;
    done_ = upto;
    flushed_.Pulse();
  }
  co_return last_;
}

}  // namespace cistern
