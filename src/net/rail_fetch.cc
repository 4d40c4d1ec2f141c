// SPDX-License-Identifier: Apache-2.0
// The part of a rail's reader that fetches bodies from the other side's memory. They come in parts into the
// fabric's own buffer, as those of the stream come into the rail's: the device never writes to a slot, which
// is another record's as soon as its batch has ended, and which a killed process's device would go on writing
// to.
#include <algorithm>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "net/rail.h"

namespace cistern::net {
namespace {

// A fetch that was given less says nothing of the fabric.
constexpr std::int64_t kFairUs = 20'000;
// One that has less is left to the stream: what it does not end in time ends the way for all who share it.
constexpr std::int64_t kLeastUs = 1'000;

}  // namespace

// ---- finding out what there is

Task<void> RailReader::Greet() {
  const std::string& kind = fabric_->kind();
  RailBatchHead head;
  head.magic = RailBatchHead::kHello;
  head.bytes = static_cast<std::uint32_t>(2 + kind.size());
  Encoder out = BeginMessage(head);
  out.U16(static_cast<std::uint16_t>(kind.size()));
  out.Bytes(std::as_bytes(std::span(kind)));
  co_await SendQuestions();
}

Task<Status> RailReader::Greeted(RailBatchHead head) {
  const Status wrong(Code::kGone, Text(stream_->peer(), ": says of its fabric what cannot be read"));
  if (head.bytes > 4 + 2 * Fabric::kNameBytes) co_return wrong;
  std::vector<std::byte> said(head.bytes);
  if (Status status = co_await Take(nullptr, said); !status.ok()) co_return status;
  Decoder in(said);
  std::size_t bytes = in.U16();
  const ConstPiece kind = in.Bytes(bytes);
  bytes = in.U16();
  const ConstPiece name = in.Bytes(bytes);
  if (!in.done() || name.size() > Fabric::kNameBytes) co_return wrong;
  if (std::ranges::equal(kind, std::as_bytes(std::span(fabric_->kind())))) {
    fabric_name_.assign(name.begin(), name.end());
  } else {
    fabric_failed_ = Status(Code::kMismatch, Text(stream_->peer(), ": has no ", fabric_->kind()));
  }
  co_return Status();
}

void RailReader::OpenWay() {
  auto way = std::make_shared<Way>();
  auto reader = fabric_->ReaderOf(fabric_name_);
  if (!reader) {
    Fail(way, reader.error(), rest_us_);
    return;
  }
  way->reader = std::move(*reader);
  for (std::size_t part = 0; part < FabricReader::kReads; ++part) way->free.push_back(part);
  way_ = std::move(way);
}

void RailReader::Fail(const std::shared_ptr<Way>& way, const Status& why, std::int64_t rest_us) {
  if (std::exchange(way->failed, true)) return;
  fabric_failed_ = Status(why.code(), Text(stream_->peer(), ": ", why.message()));
  fabric_again_ = executor().Now().PlusUs(rest_us);
  if (rest_us > 0) rest_us_ = std::min(2 * rest_us, kMostRestUs);
  // Who fetches over it finds it closed and goes on over the stream.
  if (way->reader != nullptr) way->reader->Close();
  way->freed.Pulse();
  if (way_ == way) way_.reset();
}

// ---- a batch

Task<void> RailReader::Fetch(std::shared_ptr<Batch> batch) {
  const std::shared_ptr<Way> way = way_;
  const Instant now = executor().Now();
  const std::int64_t given_us = std::min(batch->deadline.UsSince(now) / 2, kFabricUs);
  if (way != nullptr && batch->sink != nullptr && given_us >= kLeastUs) {
    const Status fetched = co_await FetchBodies(*batch, *way, now.PlusUs(given_us));
    if (fetched.ok()) {
      rest_us_ = kRestUs;
    } else {
      Fail(way, fetched, given_us < kFairUs ? 0 : rest_us_);
    }
  }
  if (!broken_.ok()) co_return;
  RailBatchHead head;
  head.magic = RailBatchHead::kTaken;
  head.items = batch->items;
  head.id = batch->id;
  head.bytes = static_cast<std::uint32_t>(batch->items * sizeof(std::uint64_t));
  Encoder out = BeginMessage(head);
  for (Placed& placed : batch->placed) {
    placed.wanted = batch->sink != nullptr && placed.landed < placed.bytes;
    out.U64(placed.wanted ? placed.landed : RailBatchHead::kNothing);
  }
  batch->taken = true;
  co_await SendQuestions();
}

Task<Status> RailReader::FetchBodies(Batch& batch, Way& way, Instant deadline) {
  std::deque<Flying> flying;
  std::uint32_t item = 0;
  std::uint64_t asked = 0;  // of the item
  for (;;) {
    while (item < batch.items && asked == batch.placed[item].bytes) {
      ++item;
      asked = 0;
    }
    if (way.failed) co_return fabric_failed_;
    if (batch.sink == nullptr) item = batch.items;  // what is under way still comes
    if (item < batch.items && !way.free.empty()) {
      const Placed& placed = batch.placed[item];
      const std::size_t part = way.free.back();
      way.free.pop_back();
      const auto bytes =
          static_cast<std::size_t>(std::min<std::uint64_t>(placed.bytes - asked, FabricReader::kReadBytes));
      const Piece into = way.reader->buffer().subspan(part * FabricReader::kReadBytes, bytes);
      const FabricPlace from{placed.place.address + asked, placed.place.key};
      flying.push_back({way.reader->Read(from, into, deadline), part, item, bytes});
      asked += bytes;
      continue;
    }
    if (flying.empty() && item == batch.items) co_return Status();
    if (flying.empty()) {
      const Status freed = co_await way.freed.Wait(deadline);
      if (!freed.ok()) co_return Status(Code::kTooLate, "the fabric had no room before the deadline");
      continue;
    }
    Flying first = std::move(flying.front());
    flying.pop_front();
    // A part whose read failed stays out of use with the way that it came by.
    const Status status = co_await first.read;
    if (!status.ok()) co_return status;
    Land(batch, first, way.reader->buffer().subspan(first.part * FabricReader::kReadBytes, first.bytes));
    way.free.push_back(first.part);
    way.freed.Pulse();
    co_await Yield();
  }
}

void RailReader::Land(Batch& batch, const Flying& landed, ConstPiece bytes) {
  if (batch.sink == nullptr) return;
  batch.placed[landed.item].landed += bytes.size();
  fabric_->NoteFetched(bytes.size());
  batch.sink->Take(landed.item, bytes);
}

Task<Status> RailReader::Judge(RailBatchHead head) {
  const auto at = std::ranges::find(parked_, head.id, [](const auto& batch) { return batch->id; });
  if (at == parked_.end() || !(*at)->taken || (*at)->items != head.items)
    co_return Status(Code::kGone, Text(stream_->peer(), ": judged what was not asked"));
  const std::shared_ptr<Batch> batch = *at;
  batch->answering = true;
  for (std::uint32_t item = 0; item < batch->items; ++item) {
    Placed& placed = batch->placed[item];
    if (!placed.wanted) continue;
    std::array<std::byte, sizeof(std::uint64_t)> count;
    if (Status status = co_await Take(batch.get(), count); !status.ok()) co_return status;
    const auto bytes = LoadAt<std::uint64_t>(count.data(), 0);
    if (bytes == 0) {
      batch->outcome[item] = Status(Code::kMiss, Text(stream_->peer(), ": waited for no longer"));
      continue;
    }
    if (bytes != placed.bytes - placed.landed)
      co_return Status(Code::kGone, Text(stream_->peer(), ": sends ", bytes, " bytes where ",
                                         placed.bytes - placed.landed, " were missing"));
    if (Status status = co_await ReceiveBody(*batch, item, bytes); !status.ok()) co_return status;
  }
  std::array<std::byte, RailLimits::kBatchItems> whole;
  if (Status status = co_await Take(batch.get(), std::span(whole).first(batch->items)); !status.ok())
    co_return status;
  std::erase(parked_, batch);
  EndItems(*batch, whole);
  co_return Status();
}

}  // namespace cistern::net
