// SPDX-License-Identifier: Apache-2.0
#include "catalog/journal.h"

#include <algorithm>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/limits.h"
#include "record/crc_field.h"

namespace cistern::catalog {
namespace {

constexpr std::size_t kFileHeadBytes = 16;
constexpr std::size_t kBatchHeadBytes = 8;   // crc, bytes of records
constexpr std::size_t kRecordHeadBytes = 5;  // payload bytes, kind
constexpr std::size_t kMaxPayloadBytes = 256u << 10;
constexpr std::uint64_t kMaxFileBytes = 256ull
                                        << 20;  // far above what kMaxNamespaces and the tombstones take
constexpr std::uint64_t kSlackBytes = 1u << 20;
constexpr std::uint64_t kSpareBytes = 64u << 10;
constexpr std::size_t kStepRecords = 256;

constexpr std::size_t kTombstoneBytes = 8 + 8 + 1 + BlockKey::kMaxBytes;

std::vector<std::byte> NumbersOf(std::span<const std::uint64_t> numbers) {
  std::vector<std::byte> payload;
  Encoder out(payload);
  for (const std::uint64_t number : numbers) out.U64(number);
  return payload;
}

std::optional<Tombstone> DecodeTombstone(std::span<const std::byte> payload) {
  Decoder in(payload);
  Tombstone tombstone;
  tombstone.sequence = in.U64();
  tombstone.incarnation = in.U64();
  tombstone.key = in.Key();
  if (!in.done() || tombstone.key.none()) return std::nullopt;
  return tombstone;
}

// How many bytes of records the batch at `at` says that it has; none where no batch could.
std::optional<std::size_t> BatchBytesAt(std::span<const std::byte> bytes, std::size_t at) {
  if (bytes.size() - at < kBatchHeadBytes) return std::nullopt;
  const auto size = LoadAt<std::uint32_t>(bytes.data(), at + 4);
  if (size == 0 || size > bytes.size() - at - kBatchHeadBytes) return std::nullopt;
  return size;
}

// The payload of the first of some records.
std::optional<std::span<const std::byte>> PayloadAt(std::span<const std::byte> records) {
  if (records.size() < kRecordHeadBytes) return std::nullopt;
  const auto size = LoadAt<std::uint32_t>(records.data(), 0);
  if (size > kMaxPayloadBytes || size > records.size() - kRecordHeadBytes) return std::nullopt;
  return records.subspan(kRecordHeadBytes, size);
}

// Fills in the header of a batch, for which there is room before its records.
void Seal(std::vector<std::byte>& batch) {
  StoreAt(batch.data(), 4, static_cast<std::uint32_t>(batch.size() - kBatchHeadBytes));
  record::StoreCrcAt(batch, 0, 4);
}

// Whether another record of so many bytes goes into the batch.
bool HasRoom(const std::vector<std::byte>& batch, std::size_t payload_bytes) {
  return batch.size() == kBatchHeadBytes ||
         batch.size() + kRecordHeadBytes + payload_bytes <= kBatchHeadBytes + kJournalBatchBytes;
}

// What a step of the core has done of long work.
struct Effort {
  std::size_t bytes = 0, records = 0;
  // Whether that is enough for a step; then it begins anew.
  bool Add(std::size_t more_bytes) {
    bytes += more_bytes;
    if (++records < kStepRecords && bytes < kStepBytes) return false;
    *this = {};
    return true;
  }
};

}  // namespace

Journal::Journal(io::Loop& loop, std::string directory, std::uint64_t new_id)
    : loop_(loop), directory_(std::move(directory)), id_(new_id) {}

// SplitMix64's finalizer, a bijection: no two sequence numbers of one journal give the same.
std::uint64_t Journal::IncarnationOf(std::uint64_t sequence) const {
  std::uint64_t x = id_ + sequence;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return x != 0 ? x : 1;  // 0 is no incarnation
}

void Journal::Append(std::vector<std::byte>& batch, Kind kind, std::span<const std::byte> payload) {
  CISTERN_ASSERT(payload.size() <= kMaxPayloadBytes);
  Encoder out(batch);
  out.U32(static_cast<std::uint32_t>(payload.size()));
  out.U8(static_cast<std::uint8_t>(kind));
  out.Bytes(payload);
}

void Journal::Append(Kind kind, std::span<const std::byte> payload) {
  if (pending_.empty() || !HasRoom(pending_.back().bytes, payload.size())) {
    pending_.emplace_back().bytes.resize(kBatchHeadBytes);
  }
  Append(pending_.back().bytes, kind, payload);
}

std::vector<std::byte> Journal::PayloadOf(const Tombstone& tombstone) {
  std::vector<std::byte> payload;
  Encoder out(payload);
  out.U64(tombstone.sequence);
  out.U64(tombstone.incarnation);
  out.Key(tombstone.key);
  return payload;
}

Task<bool> Journal::Checks(std::span<const std::byte> bytes, std::size_t at, std::size_t size) {
  const std::span<const std::byte> summed = bytes.subspan(at + 4, kBatchHeadBytes - 4 + size);
  std::uint32_t crc = 0;
  for (std::size_t from = 0; from < summed.size(); from += kStepBytes) {
    if (from > 0) co_await Yield();
    crc = record::Crc32c(summed.data() + from, std::min<std::size_t>(kStepBytes, summed.size() - from), crc);
  }
  co_return crc == LoadAt<std::uint32_t>(bytes.data(), at);
}

Task<bool> Journal::Apply(std::span<const std::byte> bytes, std::size_t* used, Contents* contents) {
  std::map<std::uint32_t, NamespaceEntry> namespaces;
  std::map<std::uint64_t, Tombstone> tombstones;
  Effort effort;
  bool whole = true;
  std::span<const std::byte> batch;
  while (*used < bytes.size() || !batch.empty()) {
    if (batch.empty()) {
      const auto size = BatchBytesAt(bytes, *used);
      whole = size && co_await Checks(bytes, *used, *size);
      if (!whole) break;
      if (effort.Add(*size)) co_await Yield();
      batch = bytes.subspan(*used + kBatchHeadBytes, *size);
      *used += kBatchHeadBytes + *size;
    }
    const auto payload = PayloadAt(batch);
    if (!payload) {
      // It checks, so it was written like that: by nobody who knows this format.
      contents->damaged = true;
      batch = {};
      continue;
    }
    if (effort.Add(payload->size())) co_await Yield();
    switch (static_cast<Kind>(std::to_integer<std::uint8_t>(batch[4]))) {
      case Kind::kSequences:
        if (payload->size() == 8) {
          contents->sequences_below =
              std::max(contents->sequences_below, LoadAt<std::uint64_t>(payload->data(), 0));
        }
        break;
      case Kind::kNamespace:
        if (auto entry = NamespaceTable::Decode(*payload)) namespaces[entry->slot] = std::move(*entry);
        break;
      case Kind::kTombstone:
        if (auto tombstone = DecodeTombstone(*payload)) tombstones[tombstone->sequence] = *tombstone;
        break;
      case Kind::kTombstoneEnd:
        if (payload->size() == 8) tombstones.erase(LoadAt<std::uint64_t>(payload->data(), 0));
        break;
      case Kind::kId:
        if (payload->size() == 8) id_ = LoadAt<std::uint64_t>(payload->data(), 0);
        break;
      case Kind::kTime:
        if (payload->size() == 8) time_s_ = std::max(time_s_, LoadAt<std::uint64_t>(payload->data(), 0));
        contents->time_s = time_s_;
        break;
      case Kind::kDevices:
        contents->devices.clear();
        for (std::size_t at = 0; at + 8 <= payload->size(); at += 8) {
          contents->devices.push_back(LoadAt<std::uint64_t>(payload->data(), at));
        }
        break;
    }
    batch = batch.subspan(kRecordHeadBytes + payload->size());
  }
  contents->namespaces.reserve(namespaces.size());
  contents->tombstones.reserve(tombstones.size());
  for (auto& [slot, entry] : namespaces) {
    if (effort.Add(0)) co_await Yield();
    contents->namespaces.push_back(std::move(entry));
  }
  for (const auto& [sequence, tombstone] : tombstones) {
    if (effort.Add(sizeof(tombstone))) co_await Yield();
    contents->tombstones.push_back(tombstone);
  }
  co_return whole;
}

Task<Result<Journal::Contents>> Journal::Open() {
  const std::string path = directory_ + "/journal";
  if (auto spare = loop_.Open(path + ".spare", io::OpenMode::kRead)) {
    spare_ = spare->Size().value_or(0) >= kSpareBytes;
  }
  auto opened = loop_.Open(path, io::OpenMode::kCreate);
  if (!opened) co_return std::unexpected(opened.error());
  io::File file = std::move(*opened);
  const auto size = file.Size();
  if (!size) co_return std::unexpected(size.error());
  if (*size > kMaxFileBytes) {
    co_return Error(Code::kMismatch, Text(path, ": has ", *size, " bytes, more than any journal"));
  }
  Contents contents;
  // Made and not yet written is how a first start that was cut off leaves it.
  if (*size == 0) co_return contents;
  std::vector<std::byte> bytes;
  bytes.reserve(*size);
  while (bytes.size() < *size) {
    const std::size_t at = bytes.size();
    bytes.resize(std::min<std::size_t>(at + kStepBytes, *size));
    const auto piece = std::span(bytes).subspan(at);
    if (Status status = co_await file.ReadAll(piece, at); !status.ok())
      co_return std::unexpected(std::move(status));
  }
  if (bytes.size() < kFileHeadBytes || LoadAt<std::uint64_t>(bytes.data(), 0) != kJournalMagic) {
    co_return Error(Code::kMismatch,
                    Text(path, ": is no journal; move it away to start without what it held"));
  }
  if (const auto version = LoadAt<std::uint64_t>(bytes.data(), 8); version != kJournalVersion) {
    co_return Error(Code::kMismatch,
                    Text(path, ": is of format version ", version, " and this node reads version ",
                         kJournalVersion, "; use the node that wrote it, or move it away"));
  }
  std::size_t used = kFileHeadBytes;
  const bool whole = co_await Apply(bytes, &used, &contents);
  // A batch behind the one that does not check: not the end of an append that a crash cut off.
  for (std::size_t at = used + 1; !whole && at < bytes.size() && !contents.damaged; ++at) {
    if (const auto batch = BatchBytesAt(bytes, at)) contents.damaged = co_await Checks(bytes, at, *batch);
    if ((at - used) % kStepBytes == 0) co_await Yield();
  }
  co_return contents;
}

Task<Status> Journal::Start(std::vector<NamespaceEntry> namespaces, std::uint64_t sequences_below,
                            std::vector<Tombstone> tombstones, std::vector<std::uint64_t> devices) {
  namespaces_.clear();
  tombstones_.clear();
  devices_ = std::move(devices);
  Effort effort;
  for (const Tombstone& tombstone : tombstones) {
    tombstones_[tombstone.sequence] = tombstone;
    if (effort.Add(sizeof(tombstone))) co_await Yield();
  }
  for (const NamespaceEntry& entry : namespaces) {
    std::vector<std::byte>& bytes = namespaces_[entry.slot] = NamespaceTable::Encode(entry);
    if (effort.Add(bytes.size())) co_await Yield();
  }
  sequences_below_ = sequences_below;
  broken_ = true;
  pending_.emplace_back().bytes.resize(kBatchHeadBytes);
  co_return co_await Flush(std::make_shared<Asked>());
}

Task<Status> Journal::PutNamespace(const NamespaceEntry& entry) {
  auto asked = std::make_shared<Asked>();
  std::vector<std::byte> bytes = NamespaceTable::Encode(entry);
  Append(Kind::kNamespace, bytes);
  asked->names = true;
  asked->slot = entry.slot;
  asked->before = std::exchange(namespaces_[entry.slot], std::move(bytes));
  co_return co_await Flush(std::move(asked));
}

Task<Status> Journal::ReserveSequences(std::uint64_t below) {
  Append(Kind::kSequences, NumbersOf({&below, 1}));
  sequences_below_ = below;
  co_return co_await Flush(std::make_shared<Asked>());
}

Task<Status> Journal::AddTombstone(Tombstone tombstone) {
  Append(Kind::kTombstone, PayloadOf(tombstone));
  tombstones_[tombstone.sequence] = tombstone;
  co_return co_await Flush(std::make_shared<Asked>());
}

Task<Status> Journal::PutDevices(std::vector<std::uint64_t> devices) {
  devices_ = std::move(devices);
  Append(Kind::kDevices, NumbersOf(devices_));
  co_return co_await Flush(std::make_shared<Asked>());
}

Task<Status> Journal::PutTime(std::uint64_t time_s) {
  time_s_ = std::max(time_s_, time_s);
  Append(Kind::kTime, NumbersOf({&time_s_, 1}));
  co_return co_await Flush(std::make_shared<Asked>());
}

void Journal::EndTombstone(std::uint64_t sequence) {
  if (tombstones_.erase(sequence) == 0) return;
  Append(Kind::kTombstoneEnd, NumbersOf({&sequence, 1}));
}

// A batch a step. What changes meanwhile is appended behind, whether or not it came in here as well.
Task<Result<std::uint64_t>> Journal::WriteAnew(io::File& file) {
  std::vector<std::byte> out;
  Encoder(out).U64(kJournalMagic);
  Encoder(out).U64(kJournalVersion);
  std::uint64_t at = 0;
  Status status = co_await file.WriteAll(out, at);
  at += out.size();
  out.assign(kBatchHeadBytes, std::byte{0});
  Append(out, Kind::kSequences, NumbersOf({&sequences_below_, 1}));
  Append(out, Kind::kId, NumbersOf({&id_, 1}));
  Append(out, Kind::kDevices, NumbersOf(devices_));
  Append(out, Kind::kTime, NumbersOf({&time_s_, 1}));
  std::uint32_t slot = 0;
  std::uint64_t sequence = 0;
  for (bool more = true; more && status.ok();) {
    for (;;) {
      const auto entry = namespaces_.lower_bound(slot);
      const auto tombstone = tombstones_.lower_bound(sequence);
      if (entry != namespaces_.end()) {
        if (!HasRoom(out, entry->second.size())) break;
        Append(out, Kind::kNamespace, entry->second);
        slot = entry->first + 1;
      } else if (more = tombstone != tombstones_.end(); more) {
        if (!HasRoom(out, kTombstoneBytes)) break;
        Append(out, Kind::kTombstone, PayloadOf(tombstone->second));
        sequence = tombstone->first + 1;
      } else {
        break;
      }
    }
    if (out.size() == kBatchHeadBytes) break;  // the last ended meanwhile
    Seal(out);
    status = co_await file.WriteAll(out, at);
    at += out.size();
    out.assign(kBatchHeadBytes, std::byte{0});
  }
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return at;
}

// A new file beside the old one, durable before it takes its name: there is always one that is whole.
Task<Status> Journal::Rewrite() {
  const std::string path = directory_ + "/journal";
  const std::string next = path + ".new";
  auto opened = loop_.Open(next, io::OpenMode::kCreateNew);
  if (!opened) {
    // Left behind by a crash in the middle of this.
    if (Status status = loop_.Remove(next); !status.ok()) co_return std::move(opened.error());
    opened = loop_.Open(next, io::OpenMode::kCreateNew);
    if (!opened) co_return std::move(opened.error());
  }
  io::File file = std::move(*opened);
  const auto bytes = co_await WriteAnew(file);
  if (!bytes) co_return bytes.error();
  if (Status status = co_await file.Sync(); !status.ok()) co_return status;
  if (Status status = loop_.Rename(next, path); !status.ok()) co_return status;
  if (Status status = co_await loop_.SyncDirectory(directory_); !status.ok()) co_return status;
  file_ = std::move(file);
  end_ = live_bytes_ = *bytes;
  broken_ = false;
  co_return Status();
}

// Where there is no room for it either, all goes on without.
void Journal::KeepSpare() {
  if (spare_) return;
  const std::string path = directory_ + "/journal.spare";
  auto file = loop_.Open(path, io::OpenMode::kCreate);
  if (!file) return;
  spare_ = loop_.Preallocate(*file, std::max(kSpareBytes, 2 * live_bytes_)).ok();
  if (!spare_) (void)loop_.Remove(path);
}

bool Journal::GiveUpSpare() {
  if (!spare_) return false;
  spare_ = false;
  return loop_.Remove(directory_ + "/journal.spare").ok();
}

Task<Status> Journal::WriteOut(std::vector<AskedPtr>* asked) {
  // After a failed write nothing is known of the file's end, and appending there could bury records behind a
  // torn one.
  if (broken_ || end_ + pending_.front().bytes.size() > 2 * live_bytes_ + kSlackBytes) {
    broken_ = true;
    for (Batch& batch : pending_) asked->insert(asked->end(), batch.asked.begin(), batch.asked.end());
    pending_.clear();
    Status status = co_await Rewrite();
    // What is half written goes first, with the room it took.
    if (!status.ok() && GiveUpSpare()) status = co_await Rewrite();
    if (status.ok()) KeepSpare();
    co_return status;
  }
  Batch batch = std::move(pending_.front());
  pending_.pop_front();
  *asked = std::move(batch.asked);
  Seal(batch.bytes);
  broken_ = true;
  if (Status status = co_await file_.WriteAll(batch.bytes, end_); !status.ok()) co_return status;
  if (Status status = co_await file_.Sync(); !status.ok()) co_return status;
  end_ += batch.bytes.size();
  broken_ = false;
  co_return Status();
}

// What was not acknowledged is not written with what was.
void Journal::GoBack(const std::vector<AskedPtr>& failed) {
  for (std::size_t i = 0; i < failed.size(); ++i) {
    Asked& asked = *failed[i];
    if (!asked.names) continue;
    // One that came after it goes back further now.
    Asked* later = nullptr;
    const auto is_later = [&](const AskedPtr& other) { return other->names && other->slot == asked.slot; };
    if (const auto at =
            std::find_if(failed.begin() + static_cast<std::ptrdiff_t>(i) + 1, failed.end(), is_later);
        at != failed.end()) {
      later = at->get();
    }
    for (auto batch = pending_.begin(); later == nullptr && batch != pending_.end(); ++batch) {
      const auto at = std::ranges::find_if(batch->asked, is_later);
      if (at != batch->asked.end()) later = at->get();
    }
    if (later != nullptr) {
      later->before = std::move(asked.before);
    } else if (asked.before.empty()) {
      namespaces_.erase(asked.slot);
    } else {
      namespaces_[asked.slot] = std::move(asked.before);
    }
  }
}

// Whoever finds nobody flushing writes for all whose records are in the next batch, and wakes those of the
// one after.
Task<Status> Journal::Flush(AskedPtr asked) {
  pending_.back().asked.push_back(asked);
  while (!asked->done) {
    if (flushing_) {
      co_await asked->told.Wait();
      continue;
    }
    flushing_ = true;
    std::vector<AskedPtr> all;
    const Status status = co_await WriteOut(&all);
    flushing_ = false;
    if (!status.ok()) GoBack(all);
    for (const AskedPtr& one : all) {
      one->done = true;
      one->status = status;
      one->told.Pulse();
    }
    const auto next = std::ranges::find_if(pending_, [](const Batch& batch) { return !batch.asked.empty(); });
    if (next == pending_.end()) continue;
    for (const AskedPtr& one : next->asked) one->told.Pulse();
  }
  co_return asked->status;
}

}  // namespace cistern::catalog
