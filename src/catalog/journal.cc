// SPDX-License-Identifier: Apache-2.0
#include "catalog/journal.h"

#include <algorithm>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/limits.h"
#include "base/random.h"
#include "record/crc_field.h"

namespace cistern::catalog {
namespace {

constexpr std::size_t kFileHeadBytes = 40;
constexpr std::size_t kFirstVersionHeadBytes = 16;
constexpr std::size_t kHeadCrcAt = 32;
constexpr std::size_t kBatchHeadBytes = 8;   // crc, bytes of records
constexpr std::size_t kRecordHeadBytes = 5;  // payload bytes, kind
constexpr std::size_t kMaxPayloadBytes = 256u << 10;
constexpr std::uint64_t kMaxFileBytes = 256ull
                                        << 20;  // far above what kMaxNamespaces and the tombstones take
constexpr std::uint64_t kSlackBytes = 1u << 20;
constexpr std::uint64_t kSpareBytes = 64u << 10;
constexpr std::uint64_t kLeastSpareBytes = 16u << 10;  // two files, each of a page or two
constexpr std::size_t kStepRecords = 256;
constexpr std::size_t kMaxBatchBytes = kBatchHeadBytes + kRecordHeadBytes + kMaxPayloadBytes;
// The most that is summed to find a batch behind a torn one: what was torn holds few places that look like
// one.
constexpr std::size_t kMaxSearchedBytes = 16u << 20;

constexpr std::array<const char*, 2> kCopies = {"/journal", "/journal.copy"};

constexpr std::size_t kTombstoneBytes = 8 + 8 + 1 + BlockKey::kMaxBytes;
constexpr std::size_t kConversationEndBytes = 3 * 8;

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

std::optional<ConversationEnd> DecodeConversationEnd(std::span<const std::byte> payload) {
  Decoder in(payload);
  ConversationEnd end;
  end.sequence = in.U64();
  end.incarnation = in.U64();
  end.conversation = in.U64();
  return in.done() ? std::optional(end) : std::nullopt;
}

std::vector<std::byte> EncodedStanding(const CellStanding& standing) {
  const std::array<std::uint64_t, 6> numbers = {standing.history,          standing.cluster_id,
                                                standing.highest_revision, standing.applied,
                                                standing.last_revision,    standing.last_hash};
  return NumbersOf(numbers);
}

std::optional<CellStanding> DecodeStanding(std::span<const std::byte> payload) {
  Decoder in(payload);
  CellStanding standing;
  standing.history = in.U64();
  standing.cluster_id = in.U64();
  standing.highest_revision = in.U64();
  standing.applied = in.U64();
  standing.last_revision = in.U64();
  standing.last_hash = in.U64();
  return in.done() ? std::optional(standing) : std::nullopt;
}

// How many bytes of records the batch at `at` says that it has; none where no batch could.
std::optional<std::size_t> BatchBytesAt(std::span<const std::byte> bytes, std::size_t at) {
  if (bytes.size() - at < kBatchHeadBytes) return std::nullopt;
  const auto size = LoadAt<std::uint32_t>(bytes.data(), at + 4);
  if (size == 0 || size > std::min(bytes.size() - at, kMaxBatchBytes) - kBatchHeadBytes) return std::nullopt;
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

std::optional<std::uint64_t> NumberOf(std::span<const std::byte> payload) {
  if (payload.size() != 8) return std::nullopt;
  return LoadAt<std::uint64_t>(payload.data(), 0);
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

// No two sequence numbers of one journal give the same.
std::uint64_t Journal::IncarnationOf(std::uint64_t sequence) const {
  const std::uint64_t incarnation = MixBits(id_ + sequence);
  return incarnation != 0 ? incarnation : 1;  // 0 is none
}

void Journal::Append(std::vector<std::byte>& batch, Kind kind, std::span<const std::byte> payload) {
  CISTERN_ASSERT(payload.size() <= kMaxPayloadBytes);
  Encoder out(batch);
  out.U32(static_cast<std::uint32_t>(payload.size()));
  out.U8(static_cast<std::uint8_t>(kind));
  out.Bytes(payload);
}

std::vector<std::byte>& Journal::BatchFor(std::size_t payload_bytes) {
  if (pending_.empty() || !HasRoom(pending_.back().bytes, payload_bytes))
    pending_.emplace_back().bytes.resize(kBatchHeadBytes);
  return pending_.back().bytes;
}

void Journal::Append(Kind kind, std::span<const std::byte> payload) {
  Append(BatchFor(payload.size()), kind, payload);
}

Journal::Named Journal::NamedOf(const NamespaceEntry& entry) {
  return {.list = NamespaceTable::Encode(entry), .labels = NamespaceTable::EncodeLabels(entry)};
}

std::size_t Journal::Named::payload_bytes() const {
  return list.size() + (labels.empty() ? 0 : kRecordHeadBytes + labels.size());
}

void Journal::Append(std::vector<std::byte>& batch, const Named& named) {
  Append(batch, Kind::kNamespace, named.list);
  if (!named.labels.empty()) Append(batch, Kind::kLabels, named.labels);
}

// In one batch, so that a crash keeps both or neither.
void Journal::Append(const Named& named) { Append(BatchFor(named.payload_bytes()), named); }

std::vector<std::byte> Journal::PayloadOf(const Tombstone& tombstone) {
  std::vector<std::byte> payload;
  Encoder out(payload);
  out.U64(tombstone.sequence);
  out.U64(tombstone.incarnation);
  out.Key(tombstone.key);
  return payload;
}

std::vector<std::byte> Journal::PayloadOf(const ConversationEnd& end) {
  return NumbersOf(std::array{end.sequence, end.incarnation, end.conversation});
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

std::size_t Journal::Found::head_bytes() const {
  return version == 1 ? kFirstVersionHeadBytes : kFileHeadBytes;
}

Task<Journal::Found> Journal::Find(std::string path) {
  Found found;
  found.path = std::move(path);
  auto opened = loop_.Open(found.path, io::OpenMode::kCreate);
  if (!opened) {
    found.status = opened.error();
    co_return found;
  }
  io::File file = std::move(*opened);
  const auto size = file.Size();
  if (!size) {
    found.status = size.error();
    co_return found;
  }
  if (*size > kMaxFileBytes) {
    found.status =
        Status(Code::kMismatch, Text(found.path, ": has ", *size, " bytes, more than any journal"));
    co_return found;
  }
  std::vector<std::byte>& bytes = found.bytes;
  bytes.reserve(*size);
  while (bytes.size() < *size) {
    const std::size_t at = bytes.size();
    bytes.resize(std::min<std::size_t>(at + kStepBytes, *size));
    found.status = co_await file.ReadAll(std::span(bytes).subspan(at), at);
    if (!found.status.ok()) co_return found;
  }
  // Made and not yet written is how a first start that was cut off leaves it.
  if (bytes.empty()) co_return found;
  if (bytes.size() < kFirstVersionHeadBytes || LoadAt<std::uint64_t>(bytes.data(), 0) != kJournalMagic) {
    found.status = Status(Code::kMismatch, Text(found.path, ": is no journal; move it and its copy away to ",
                                                "start without what it held"));
    co_return found;
  }
  found.version = LoadAt<std::uint64_t>(bytes.data(), 8);
  if (found.version == 1) co_return found;
  if (found.version != kJournalVersion) {
    found.status =
        Status(Code::kMismatch, Text(found.path, ": is of format version ", found.version,
                                     " and this node reads versions 1 and ", kJournalVersion,
                                     "; use the node that wrote it, or move it and its copy away"));
  } else if (bytes.size() < kFileHeadBytes ||
             LoadAt<std::uint32_t>(bytes.data(), kHeadCrcAt) != record::Crc32c(bytes.data(), kHeadCrcAt)) {
    found.status = Status(Code::kMismatch, Text(found.path, ": its head is damaged; move it and its copy ",
                                                "away to start without what it held"));
  } else {
    found.id = LoadAt<std::uint64_t>(bytes.data(), 16);
    found.state = LoadAt<std::uint64_t>(bytes.data(), 24);
  }
  co_return found;
}

// One of them alone has all that was acknowledged, unless it is damaged: both had it before.
Result<std::vector<Journal::Found>> Journal::Choose(std::vector<Found> copies, Contents* contents) const {
  const Found* best = nullptr;
  const Status* refusal = nullptr;
  for (const Found& copy : copies) {
    // It may be back at the next try, and then it is what shows damage to the other one.
    if (copy.status.code() == Code::kIoError) {
      return Error(Code::kIoError,
                   Text(copy.status.message(), "; try again, or move this file away to start ",
                        "with what lies in the other one of journal and journal.copy"));
    }
    if (!copy.status.ok() && refusal == nullptr) refusal = &copy.status;
    // Of different journals the first counts: nobody makes the copy alone.
    if (copy.readable() &&
        (best == nullptr || (best->state < copy.state && (best->version == 1 || best->id == copy.id)))) {
      best = &copy;
    }
  }
  if (best == nullptr && refusal != nullptr) return Error(*refusal);
  if (best == nullptr) return std::vector<Found>();
  const std::uint64_t id = best->id, state = best->state;
  const std::string path = best->path;
  std::vector<Found> kept;
  for (Found& copy : copies) {
    if (!copy.status.ok()) {
      contents->notes.push_back(Text(copy.status.message(), "; its copy ", path, " is used"));
    } else if (copy.bytes.empty()) {
      if (state > 0) contents->notes.push_back(Text(copy.path, ": is missing; ", path, " is used alone"));
    } else if (copy.id != id) {
      if (copy.version > 1)
        contents->notes.push_back(Text(copy.path, ": is another journal than ", path, ", which counts"));
    } else if (copy.state != state) {
      contents->notes.push_back(Text(copy.path, ": was written anew ", copy.state, " times and ", path, ' ',
                                     state, " times, which counts"));
    } else {
      kept.push_back(std::move(copy));
    }
  }
  return kept;
}

Task<std::span<const std::byte>> Journal::BatchAt(const std::vector<Found>& copies, std::size_t at,
                                                  Contents* contents) {
  std::span<const std::byte> records;
  const Found* from = nullptr;
  for (const Found& copy : copies) {
    const auto size = at < copy.bytes.size() ? BatchBytesAt(copy.bytes, at) : std::nullopt;
    if (size && co_await Checks(copy.bytes, at, *size)) {
      from = &copy;
      records = std::span(copy.bytes).subspan(at + kBatchHeadBytes, *size);
      break;
    }
  }
  if (from != nullptr && from != &copies.front() && contents->notes.empty()) {
    contents->notes.push_back(
        Text(copies.front().path, ": does not check at byte ", at, "; ", from->path, " has what it held"));
  }
  co_return records;
}

void Journal::Apply(Kind kind, std::span<const std::byte> payload, Applied* applied, Contents* contents) {
  const std::optional<std::uint64_t> number = NumberOf(payload);
  switch (kind) {
    case Kind::kSequences:
      if (number) contents->sequences_below = std::max(contents->sequences_below, *number);
      break;
    case Kind::kNamespace:
      if (auto entry = NamespaceTable::Decode(payload)) {
        applied->namespaces[entry->slot] = std::move(*entry);
      } else if (const auto slot = NamespaceTable::SlotOf(payload)) {
        applied->namespaces.erase(*slot);
      } else {
        contents->damaged = true;
      }
      break;
    case Kind::kLabels:
      if (auto read = NamespaceTable::DecodeLabels(payload); read && applied->namespaces.contains(read->slot))
        applied->namespaces[read->slot].labels = std::move(read->labels);
      break;
    case Kind::kTombstone:
      if (auto tombstone = DecodeTombstone(payload)) {
        applied->tombstones[tombstone->sequence] = *tombstone;
      } else {
        contents->damaged = true;
      }
      break;
    case Kind::kTombstoneEnd:
      if (!number) break;
      applied->tombstones.erase(*number);
      Ended(*number);
      break;
    case Kind::kEnded:
      if (number) Ended(*number);
      break;
    case Kind::kId:
      if (number) id_ = *number;
      break;
    case Kind::kTime:
      if (number) time_s_ = std::max(time_s_, *number);
      contents->time_s = time_s_;
      break;
    case Kind::kDevices:
      contents->devices.clear();
      for (std::size_t at = 0; at + 8 <= payload.size(); at += 8)
        contents->devices.push_back(LoadAt<std::uint64_t>(payload.data(), at));
      break;
    case Kind::kCell:
      if (const auto standing = DecodeStanding(payload)) standing_ = *standing;
      break;
    case Kind::kConversationEnd:
      if (const auto end = DecodeConversationEnd(payload)) applied->ends[end->sequence] = *end;
      if (applied->ends.size() > kMostConversationEnds) applied->ends.erase(applied->ends.begin());
      break;
    case Kind::kWhole: applied->whole = true; break;
  }
}

Task<std::size_t> Journal::Apply(const std::vector<Found>& copies, std::size_t at, Contents* contents) {
  Applied applied;
  applied.whole = copies.front().version == 1;
  Effort effort;
  for (;;) {
    std::span<const std::byte> batch = co_await BatchAt(copies, at, contents);
    if (batch.empty()) break;
    at += kBatchHeadBytes + batch.size();
    if (effort.Add(batch.size())) co_await Yield();
    while (!batch.empty()) {
      const auto payload = PayloadAt(batch);
      if (!payload) {
        // It checks, so it was written like that: by nobody who knows this format.
        contents->damaged = true;
        break;
      }
      if (effort.Add(payload->size())) co_await Yield();
      Apply(static_cast<Kind>(std::to_integer<std::uint8_t>(batch[4])), *payload, &applied, contents);
      batch = batch.subspan(kRecordHeadBytes + payload->size());
    }
  }
  contents->damaged = contents->damaged || !applied.whole;
  contents->namespaces.reserve(applied.namespaces.size());
  contents->tombstones.reserve(applied.tombstones.size());
  for (auto& [slot, entry] : applied.namespaces) {
    if (effort.Add(0)) co_await Yield();
    contents->namespaces.push_back(std::move(entry));
  }
  for (const auto& [sequence, tombstone] : applied.tombstones) {
    if (effort.Add(sizeof(tombstone))) co_await Yield();
    contents->tombstones.push_back(tombstone);
    tombstones_[sequence] = tombstone;
  }
  for (const auto& [sequence, end] : applied.ends) {
    if (effort.Add(sizeof(end))) co_await Yield();
    contents->conversation_ends.push_back(end);
  }
  contents->ended = ended_;
  co_return at;
}

// A crash tears one batch, so more bytes than one may have are damage, and so is a batch that checks behind
// it. What takes too long to search was not left by a crash either: its bytes were made to look like batches.
Task<bool> Journal::DamagedBehind(std::span<const std::byte> bytes, std::size_t from) {
  if (bytes.size() <= from) co_return false;
  if (bytes.size() - from > kMaxBatchBytes) co_return true;
  std::size_t searched = 0;
  for (std::size_t at = from + 1; at < bytes.size(); ++at) {
    if ((at - from) % kStepBytes == 0) co_await Yield();
    const auto batch = BatchBytesAt(bytes, at);
    if (!batch) continue;
    searched += *batch;
    if (searched > kMaxSearchedBytes || co_await Checks(bytes, at, *batch)) co_return true;
  }
  co_return false;
}

Task<Result<Journal::Contents>> Journal::Open() {
  if (auto spare = loop_.Open(directory_ + "/journal.spare", io::OpenMode::kRead)) {
    spare_bytes_ = spare->Size().value_or(0);
  }
  std::vector<Found> copies;
  for (const char* name : kCopies) copies.push_back(co_await Find(directory_ + name));
  Contents contents;
  auto chosen = Choose(std::move(copies), &contents);
  if (!chosen) co_return std::unexpected(chosen.error());
  if (chosen->empty()) co_return contents;
  const Found& first = chosen->front();
  if (first.version != 1) id_ = first.id;
  state_ = first.state;
  const std::size_t end = co_await Apply(*chosen, first.head_bytes(), &contents);
  contents.mark = mark_ = {state_, end};
  for (const Found& copy : *chosen) {
    contents.damaged = contents.damaged || co_await DamagedBehind(copy.bytes, end);
  }
  co_return contents;
}

Task<Status> Journal::Start(std::vector<NamespaceEntry> namespaces, std::uint64_t sequences_below,
                            std::vector<Tombstone> tombstones, std::vector<std::uint64_t> devices,
                            const std::vector<ConversationEnd>& conversation_ends) {
  std::map<std::uint64_t, Tombstone> before = std::exchange(tombstones_, {});
  devices_ = std::move(devices);
  Effort effort;
  for (const Tombstone& tombstone : tombstones) {
    tombstones_[tombstone.sequence] = tombstone;
    if (effort.Add(sizeof(tombstone))) co_await Yield();
  }
  for (const ConversationEnd& end : conversation_ends) {
    conversation_ends_[end.sequence] = end;
    if (effort.Add(sizeof(end))) co_await Yield();
  }
  // Those that are not kept end here.
  while (!before.empty()) {
    const std::uint64_t sequence = before.extract(before.begin()).key();
    if (!tombstones_.contains(sequence)) Ended(sequence);
    if (effort.Add(sizeof(Tombstone))) co_await Yield();
  }
  Changed();
  for (const NamespaceEntry& entry : namespaces) {
    const Named& named = namespaces_[entry.slot] = NamedOf(entry);
    if (effort.Add(named.payload_bytes())) co_await Yield();
  }
  sequences_below_ = sequences_below;
  broken_ = true;
  pending_.emplace_back().bytes.resize(kBatchHeadBytes);
  co_return co_await Flush();
}

Task<Status> Journal::PutNamespace(const NamespaceEntry& entry) {
  auto asked = std::make_shared<Asked>();
  asked->names = true;
  asked->slot = entry.slot;
  asked->before = Replace(entry);
  co_return co_await Flush(std::move(asked));
}

Task<Status> Journal::ReserveSequences(std::uint64_t below) {
  Append(Kind::kSequences, NumbersOf({&below, 1}));
  sequences_below_ = below;
  co_return co_await Flush();
}

Task<Status> Journal::AddTombstone(Tombstone tombstone) {
  NoteTombstone(tombstone);
  co_return co_await Flush();
}

void Journal::NoteTombstone(const Tombstone& tombstone) {
  Append(Kind::kTombstone, PayloadOf(tombstone));
  tombstones_[tombstone.sequence] = tombstone;
}

Task<Status> Journal::AddConversationEnd(ConversationEnd end) {
  NoteConversationEnd(end);
  co_return co_await Flush();
}

void Journal::NoteConversationEnd(const ConversationEnd& end) {
  Append(Kind::kConversationEnd, PayloadOf(end));
  conversation_ends_[end.sequence] = end;
  if (conversation_ends_.size() > kMostConversationEnds) conversation_ends_.erase(conversation_ends_.begin());
}

void Journal::NoteNamespace(const NamespaceEntry& entry) { (void)Replace(entry); }

Journal::Named Journal::Replace(const NamespaceEntry& entry) {
  Named named = NamedOf(entry);
  Append(named);
  Named before = std::exchange(namespaces_[entry.slot], std::move(named));
  const Named& after = namespaces_[entry.slot];
  if (!before.list.empty() && before.list.front() < after.list.front()) outdated_ = true;
  return before;
}

// What was noted is in what is written anew after a failed append, so a later batch is never durable without
// it.
Task<Status> Journal::Settle(const CellStanding* standing) {
  if (standing != nullptr) {
    standing_ = *standing;
    Append(Kind::kCell, EncodedStanding(standing_));
  } else if (pending_.empty()) {
    // All of it was handed to the files, and may have failed: something to wait for.
    Append(Kind::kSequences, NumbersOf({&sequences_below_, 1}));
  }
  co_return co_await Flush();
}

Task<Status> Journal::PutDevices(std::vector<std::uint64_t> devices) {
  devices_ = std::move(devices);
  Append(Kind::kDevices, NumbersOf(devices_));
  co_return co_await Flush();
}

Task<Status> Journal::PutTime(std::uint64_t time_s) {
  time_s_ = std::max(time_s_, time_s);
  Append(Kind::kTime, NumbersOf({&time_s_, 1}));
  spare_due_ = spare_bytes_ == 0;
  co_return co_await Flush();
}

void Journal::EndTombstone(std::uint64_t sequence) {
  if (tombstones_.erase(sequence) == 0) return;
  Ended(sequence);
  Changed();
  Append(Kind::kTombstoneEnd, NumbersOf({&sequence, 1}));
}

Task<Status> Journal::WriteAndSync(io::File& file, std::span<const std::byte> bytes, std::uint64_t at) {
  Status status = co_await file.WriteAll(bytes, at);
  if (status.ok()) status = co_await file.Sync();
  co_return status;
}

// Of the journal and of its copy, which have both begun: a disk syncs two files in little more time than one.
Task<Status> Journal::Both(Task<Status> of_journal, Task<Status> of_copy) {
  Status first = co_await std::move(of_journal);
  Status second = co_await std::move(of_copy);
  co_return first.ok() ? std::move(second) : std::move(first);
}

Task<Status> Journal::Write(Files& files, std::span<const std::byte> bytes, std::uint64_t at) {
  return Both(files[0].WriteAll(bytes, at), files[1].WriteAll(bytes, at));
}

Task<Status> Journal::Sync(Files& files) { return Both(files[0].Sync(), files[1].Sync()); }

// A batch a step. What changes meanwhile is appended behind, whether or not it came in here as well.
Task<Result<std::uint64_t>> Journal::WriteAnew(Files& files) {
  std::vector<std::byte> out;
  Encoder head(out);
  head.U64(kJournalMagic);
  head.U64(kJournalVersion);
  head.U64(id_);
  head.U64(++state_);
  head.U32(record::Crc32c(out.data(), kHeadCrcAt));
  head.U32(0);
  std::uint64_t at = 0;
  Status status = co_await Write(files, out, at);
  at += out.size();
  out.assign(kBatchHeadBytes, std::byte{0});
  Append(out, Kind::kSequences, NumbersOf({&sequences_below_, 1}));
  Append(out, Kind::kDevices, NumbersOf(devices_));
  Append(out, Kind::kTime, NumbersOf({&time_s_, 1}));
  if (standing_.history != 0) Append(out, Kind::kCell, EncodedStanding(standing_));
  std::uint32_t slot = 0;
  std::uint64_t sequence = 0, ended = 0;
  for (bool more = true; more && status.ok();) {
    for (;;) {
      const auto entry = namespaces_.lower_bound(slot);
      const auto tombstone = tombstones_.lower_bound(sequence);
      const auto end = conversation_ends_.lower_bound(ended);
      if (entry != namespaces_.end()) {
        if (!HasRoom(out, entry->second.payload_bytes())) break;
        Append(out, entry->second);
        slot = entry->first + 1;
      } else if (tombstone != tombstones_.end()) {
        if (!HasRoom(out, kTombstoneBytes)) break;
        Append(out, Kind::kTombstone, PayloadOf(tombstone->second));
        sequence = tombstone->first + 1;
      } else if (end != conversation_ends_.end()) {
        if (!HasRoom(out, kConversationEndBytes)) break;
        Append(out, Kind::kConversationEnd, PayloadOf(end->second));
        ended = end->first + 1;
      } else {
        if (!HasRoom(out, sizeof(ended_) + kRecordHeadBytes)) break;
        // Behind the tombstones: one that ended before its turn is not among them.
        if (ended_ > 0) Append(out, Kind::kEnded, NumbersOf({&ended_, 1}));
        Append(out, Kind::kWhole, {});
        more = false;
        break;
      }
    }
    Seal(out);
    status = co_await Write(files, out, at);
    at += out.size();
    out.assign(kBatchHeadBytes, std::byte{0});
  }
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return at;
}

Result<io::File> Journal::MakeAnew(const std::string& path) {
  auto opened = loop_.Open(path, io::OpenMode::kCreateNew);
  // Left behind by a crash in the middle of this.
  if (!opened && loop_.Remove(path).ok()) opened = loop_.Open(path, io::OpenMode::kCreateNew);
  return opened;
}

// New files beside the old ones, durable before they take their names: there is always one that is whole, and
// nobody was told of what only the newer one says.
Task<Status> Journal::Rewrite() {
  Files files;
  for (std::size_t i = 0; i < files.size(); ++i) {
    auto made = MakeAnew(directory_ + kCopies[i] + ".new");
    if (!made) co_return std::move(made.error());
    files[i] = std::move(*made);
  }
  const auto bytes = co_await WriteAnew(files);
  if (!bytes) co_return bytes.error();
  if (Status status = co_await Sync(files); !status.ok()) co_return status;
  for (const char* name : kCopies) {
    const std::string path = directory_ + name;
    if (Status status = loop_.Rename(path + ".new", path); !status.ok()) co_return status;
  }
  if (Status status = co_await loop_.SyncDirectory(directory_); !status.ok()) co_return status;
  files_ = std::move(files);
  named_ = files_[0].Named() && files_[1].Named();
  end_ = live_bytes_ = *bytes;
  broken_ = false;
  mark_ = {state_, end_};
  Changed();
  co_return Status();
}

// Real bytes where they cannot be reserved: what that asks the file system for leaves out what it keeps for
// root, which may be all that a full disk has.
Task<Status> Journal::TakeRoom(io::File& file, std::uint64_t bytes) {
  Status status = loop_.Preallocate(file, bytes);
  if (status.ok()) co_return status;
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(bytes, kStepBytes));
  for (std::uint64_t at = 0; at < bytes; at += zeros.size()) {
    status = co_await file.WriteAll(std::span(zeros).first(std::min(bytes - at, zeros.size())), at);
    if (!status.ok()) co_return status;
  }
  co_return co_await file.Sync();
}

// As much as there is room for, down to what writing it anew takes. Where there is no room for that, all goes
// on without.
Task<void> Journal::KeepSpare() {
  if (spare_bytes_ >= std::max(kSpareBytes, 2 * live_bytes_)) co_return;
  const std::string path = directory_ + "/journal.spare";
  std::uint64_t bytes = std::max(kSpareBytes, 4 * live_bytes_);
  if (spare_bytes_ > 0) {
    auto file = loop_.Open(path, io::OpenMode::kCreate);
    if (file && loop_.Preallocate(*file, bytes).ok()) spare_bytes_ = bytes;
    co_return;
  }
  for (; bytes >= std::max(kLeastSpareBytes, 2 * live_bytes_); bytes /= 2) {
    auto file = MakeAnew(path);
    if (!file) co_return;
    const Status taken = co_await TakeRoom(*file, bytes);
    if (taken.ok()) {
      spare_bytes_ = bytes;
      co_return;
    }
    (void)loop_.Remove(path);
  }
}

bool Journal::GiveUpSpare() {
  if (spare_bytes_ == 0) return false;
  spare_bytes_ = 0;
  return loop_.Remove(directory_ + "/journal.spare").ok();
}

bool Journal::removed() const { return named_ && !(files_[0].Named() && files_[1].Named()); }

void Journal::NoteOutcome(Status& status) {
  if (!status.ok() && !given_up_) {
    ++failures_;
    status = Status(status.code(), Text("journal: ", directory_, " takes nothing: ", status.message(),
                                        "; make room there, where it is full"));
  }
  trouble_ = status;
}

void Journal::TakeAll(std::vector<AskedPtr>* asked) {
  for (Batch& batch : pending_) asked->insert(asked->end(), batch.asked.begin(), batch.asked.end());
  pending_.clear();
}

Task<Status> Journal::WriteAllAnew() {
  broken_ = true;
  outdated_ = false;
  Status status = co_await Rewrite();
  // What is half written goes first, with the room it took.
  if (!status.ok() && GiveUpSpare()) status = co_await Rewrite();
  if (status.ok()) co_await KeepSpare();
  co_return status;
}

Task<Status> Journal::WriteOut(std::vector<AskedPtr>* asked) {
  if (given_up_) {
    TakeAll(asked);
    co_return *given_up_;
  }
  // After a failed write nothing is known of the file's end, and appending there could bury records behind a
  // torn one. What goes to a file without a name no start finds.
  if (broken_ || outdated_ || removed() ||
      end_ + pending_.front().bytes.size() > 2 * live_bytes_ + kSlackBytes) {
    TakeAll(asked);
    co_return co_await WriteAllAnew();
  }
  Batch batch = std::move(pending_.front());
  pending_.pop_front();
  *asked = std::move(batch.asked);
  Seal(batch.bytes);
  broken_ = true;
  const Status status =
      co_await Both(WriteAndSync(files_[0], batch.bytes, end_), WriteAndSync(files_[1], batch.bytes, end_));
  if (!status.ok()) co_return status;
  end_ += batch.bytes.size();
  broken_ = false;
  mark_.bytes = end_;
  Changed();
  if (std::exchange(spare_due_, false)) co_await KeepSpare();
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
    } else if (asked.before.list.empty()) {
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
    Task<Status> writing = OutOfLanes(executor(), [&] { return WriteOut(&all); });
    Status status = co_await writing;
    NoteOutcome(status);
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
