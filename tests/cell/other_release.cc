// SPDX-License-Identifier: Apache-2.0
#include "other_release.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/codec.h"
#include "base/random.h"
#include "base/random_bytes.h"
#include "mesh/cell_keys.h"
#include "mesh/peer_message.h"
#include "mesh/peers.h"
#include "net/control_connection.h"
#include "net/control_message.h"
#include "net/rail_message.h"

namespace cistern::mesh {
namespace {

using net::ConstPiece;
using net::FrameHead;
using net::FrameKind;
using net::RailBatchHead;
using net::RailItemHead;

using Bytes = std::vector<std::byte>;
using Pieces = std::vector<Bytes>;  // that are sent each for itself: bits flip in large ones

constexpr std::uint32_t kOwnQuestions =
    0xf000'0000;  // ids of a later release's, of which this one knows none

// One direction of a connection, cut into the units that its format has.
class Rewriter {
 public:
  virtual ~Rewriter() = default;
  Rewriter() = default;
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  void Take(ConstPiece bytes, Pieces& out) {
    came_.insert(came_.end(), bytes.begin(), bytes.end());
    while (!came_.empty()) {
      const std::size_t next = strange_ ? came_.size() : Next(came_);
      if (next == 0 || next > came_.size()) return;
      Bytes unit(came_.begin(), came_.begin() + static_cast<std::ptrdiff_t>(next));
      came_.erase(came_.begin(), came_.begin() + static_cast<std::ptrdiff_t>(next));
      if (strange_) {
        out.push_back(std::move(unit));
      } else {
        Rewrite(std::move(unit), out);
      }
    }
  }

 protected:
  // Bytes of the unit that these begin with, 0: too few to tell. Whatever is no unit at all is left as it is.
  virtual std::size_t Next(ConstPiece came) = 0;
  virtual void Rewrite(Bytes unit, Pieces& out) = 0;
  std::size_t Strange(ConstPiece came) {
    strange_ = true;
    return came.size();
  }

 private:
  Bytes came_;
  bool strange_ = false;
};

// What both directions of a connection know.
struct Said {
  NodeRelease release;
  Random random;
  std::map<std::uint32_t, std::uint16_t> asked, heard;  // types of questions, here and there, by id
  std::uint32_t own_questions = 0;
  std::set<std::uint64_t> any_order;  // batches that a server of an earlier release gives back
  std::deque<std::uint64_t> batches;  // that a reader of an earlier release has asked, without that bit

  // A later release has a code of its own for some reasons.
  std::uint8_t CodeOf(std::uint8_t code) { return code != 0 && random.Chance(0.2) ? 200 : code; }
  // A later release's fields.
  Bytes More() {
    Bytes more(random.Between(1, 24));
    FillRandom(random.Next(), more);
    return more;
  }
};

// Where an offer's list of the namespace begins, and where its names do; its end where there is none.
struct OfferEnds {
  std::size_t list = 0, names = 0;
  bool empty_list = true;
};
std::optional<OfferEnds> EndsOf(ConstPiece offer) {
  Decoder in(offer);
  (void)in.U64();
  (void)in.String(DropLimits::kTenantBytes);
  (void)in.Bytes(sizeof(SharedNamespace::list_hash));
  (void)in.U32();
  for (std::uint32_t keys = in.Count(PeerMessageLimits::kKeys); keys > 0; --keys) (void)in.Bytes(in.U8());
  for (int lists = 0; lists < 2; ++lists) (void)in.Bytes(4 * in.Count(8 * PeerMessageLimits::kKeys));
  OfferEnds ends;
  ends.list = ends.names = offer.size() - in.left();
  if (in.ok() && !in.done()) {
    ends.empty_list = in.Bytes(in.Count(PeerMessageLimits::kNamespaceBytes)).empty();
    ends.names = offer.size() - in.left();
  }
  return in.ok() ? std::optional(ends) : std::nullopt;
}

class Frames final : public Rewriter {
 public:
  Frames(std::shared_ptr<Said> said, bool out) : said_(std::move(said)), out_(out) {}

 private:
  std::size_t Next(ConstPiece came) override {
    if (came.size() < FrameHead::kBytes) return 0;
    const std::uint32_t payload = FrameHead::Load(came.data()).payload_bytes;
    return payload > net::ControlLimits::kPayloadBytes ? Strange(came) : FrameHead::kBytes + payload;
  }

  void Rewrite(Bytes unit, Pieces& out) override {
    FrameHead head = FrameHead::Load(unit.data());
    Bytes payload(unit.begin() + FrameHead::kBytes, unit.end());
    auto& questions = out_ ? said_->asked : said_->heard;
    auto& answered = out_ ? said_->heard : said_->asked;
    if (head.kind == FrameKind::kQuestion) questions[head.id] = head.type;
    std::uint16_t type = head.type;
    if (head.kind == FrameKind::kAnswer) {
      const auto question = answered.extract(head.id);
      type = question.empty() || head.code != 0 ? 0 : question.mapped();
    }
    switch (said_->release) {
      case NodeRelease::kEarlier: LeaveOut(head.kind, type, payload); break;
      case NodeRelease::kThis: break;
      case NodeRelease::kLater:
        if (!out_ && head.kind == FrameKind::kAnswer && head.id >= kOwnQuestions) return Answered(head);
        if (out_) AddTo(head.kind, type, payload);
        if (out_ && head.kind == FrameKind::kAnswer) head.code = said_->CodeOf(head.code);
        break;
      case NodeRelease::kApart:
        if (head.kind == FrameKind::kHello) Shift(payload);
        break;
    }
    Put(head, payload, out);
    if (out_ && said_->release == NodeRelease::kLater && head.kind != FrameKind::kHello) SayOwn(out);
  }

  static void Put(FrameHead head, ConstPiece payload, Pieces& out) {
    head.payload_bytes = static_cast<std::uint32_t>(payload.size());
    Bytes& frame = out.emplace_back(FrameHead::kBytes);
    head.Store(frame.data());
    frame.insert(frame.end(), payload.begin(), payload.end());
  }

  // Of what may be left out, as much as may be.
  static void LeaveOut(FrameKind kind, std::uint16_t type, Bytes& payload) {
    const auto cut = [&](std::size_t bytes) { payload.resize(std::min(payload.size(), bytes)); };
    if (kind == FrameKind::kNotice && type == kRoomNotice) cut(9);
    if (kind == FrameKind::kAnswer && type == kOfferQuestion) cut(13);
    if (kind != FrameKind::kQuestion || type != kOfferQuestion) return;
    if (const auto ends = EndsOf(payload)) cut(ends->empty_list ? ends->list : ends->names);
  }

  void AddTo(FrameKind kind, std::uint16_t type, Bytes& payload) {
    const bool is_text = kind == FrameKind::kNotice && type == kRailNotice;
    const bool is_message = kind == FrameKind::kAnswer ? type != 0 : kind != FrameKind::kHeartbeat;
    if (is_text || !is_message) return;
    if (kind == FrameKind::kHello && payload.size() >= 8) StoreAt(payload.data(), 6, std::uint16_t{2});
    if (kind == FrameKind::kQuestion && type == kOfferQuestion) {
      const auto ends = EndsOf(payload);
      if (!ends) return;
      Encoder out(payload);
      if (ends->list == payload.size()) out.U32(0);
      if (ends->names == payload.size() || ends->list == ends->names) out.U32(0);
    }
    const Bytes more = said_->More();
    if (payload.size() + more.size() > net::ControlLimits::kPayloadBytes) return;
    payload.insert(payload.end(), more.begin(), more.end());
  }

  // Beside what this release says.
  void SayOwn(Pieces& out) {
    if (!said_->random.Chance(0.1)) return;
    switch (said_->random.Below(3)) {
      case 0: return Put({.kind = FrameKind::kNotice, .type = 1'000}, said_->More(), out);
      case 1: return Put({.kind = static_cast<FrameKind>(77), .type = 1, .id = 1}, said_->More(), out);
      default: break;
    }
    FrameHead question{.kind = FrameKind::kQuestion, .type = 900};
    question.id = kOwnQuestions + ++said_->own_questions;
    question.remaining_us = 1'000'000;
    Put(question, said_->More(), out);
  }

  static void Answered(const FrameHead& head) {
    const auto code = static_cast<Code>(head.code);
    CISTERN_ASSERT(code == Code::kMismatch || code == Code::kBusy || code == Code::kTooLate ||
                   code > kLastCode);
  }

  // So that those of one such release speak to each other: of theirs and of this one's, none is the other's.
  void Shift(Bytes& hello) const {
    constexpr std::uint16_t kBy = 8;
    if (hello.size() < 8) return;
    for (const std::size_t at : {4, 6}) {
      const auto version = LoadAt<std::uint16_t>(hello.data(), at);
      const int shifted = out_ ? version + kBy : std::max(version - kBy, 0);
      StoreAt(hello.data(), at, static_cast<std::uint16_t>(shifted));
    }
  }

  const std::shared_ptr<Said> said_;
  const bool out_;
};

// Of who reads, to who serves.
class Questions final : public Rewriter {
 public:
  Questions(std::shared_ptr<Said> said, bool out) : said_(std::move(said)), out_(out) {}

 private:
  std::size_t Next(ConstPiece came) override {
    if (came.size() < RailBatchHead::kBytes) return 0;
    const RailBatchHead head = RailBatchHead::Load(came.data());
    if (head.magic != RailBatchHead::kQuestions || head.bytes > 1u << 20) return Strange(came);
    return RailBatchHead::kBytes + head.bytes;
  }
  void Rewrite(Bytes unit, Pieces& out) override {
    RailBatchHead head = RailBatchHead::Load(unit.data());
    Bytes& batch = out.emplace_back(RailBatchHead::kBytes);
    Decoder in(ConstPiece(unit).subspan(RailBatchHead::kBytes));
    Encoder to(batch);
    for (std::uint32_t item = 0; item < head.items && in.ok(); ++item) {
      const ConstPiece question = in.Bytes(in.U16());
      const Bytes more = out_ && said_->release == NodeRelease::kLater ? said_->More() : Bytes();
      to.U16(static_cast<std::uint16_t>(question.size() + more.size()));
      to.Bytes(question);
      to.Bytes(more);
    }
    if (!in.done()) batch = std::move(unit);
    head.bytes = static_cast<std::uint32_t>(batch.size() - RailBatchHead::kBytes);
    if (said_->release == NodeRelease::kEarlier) {
      if (!out_ && (head.id & RailBatchHead::kAnyOrder) != 0) said_->any_order.insert(head.id);
      head.id &= ~RailBatchHead::kAnyOrder;
      if (out_) said_->batches.push_back(head.id);
    }
    head.Store(batch.data());
  }

  const std::shared_ptr<Said> said_;
  const bool out_;
};

// Bodies go through as they come.
class Answers final : public Rewriter {
 public:
  Answers(std::shared_ptr<Said> said, bool out) : said_(std::move(said)), out_(out) {}

 private:
  enum class Unit : std::uint8_t { kBatch, kItem, kBody, kEnd };

  std::size_t Next(ConstPiece came) override {
    switch (unit_) {
      case Unit::kBatch:
        if (came.size() < RailBatchHead::kBytes) return 0;
        return RailBatchHead::Load(came.data()).magic == RailBatchHead::kAnswers ? RailBatchHead::kBytes
                                                                                 : Strange(came);
      case Unit::kItem: {
        if (came.size() < RailItemHead::kBytes) return 0;
        const RailItemHead item = RailItemHead::Load(came.data());
        if (item.placed != 0 || item.head_bytes > 1u << 20) return Strange(came);
        return RailItemHead::kBytes + item.head_bytes;
      }
      case Unit::kBody: return std::min<std::uint64_t>(came.size(), body_left_);
      case Unit::kEnd: return items_;
    }
    return 0;
  }
  void Rewrite(Bytes unit, Pieces& out) override {
    switch (unit_) {
      case Unit::kBatch: {
        RailBatchHead head = RailBatchHead::Load(unit.data());
        items_ = items_left_ = head.items;
        if (said_->release == NodeRelease::kEarlier) {
          const bool marked = !out_ || said_->any_order.erase(Marked(head.id)) > 0;
          if (!out_) {
            CISTERN_ASSERT(!said_->batches.empty() && said_->batches.front() == head.id);
            said_->batches.pop_front();
          }
          if (marked) head.id = Marked(head.id);
        }
        head.Store(unit.data());
        unit_ = items_ > 0 ? Unit::kItem : Unit::kBatch;
        break;
      }
      case Unit::kItem: {
        RailItemHead item = RailItemHead::Load(unit.data());
        body_left_ = item.body_bytes;
        --items_left_;
        if (out_ && said_->release == NodeRelease::kLater && item.code == 0) {
          const Bytes more = said_->More();
          unit.insert(unit.end(), more.begin(), more.end());
          item.head_bytes += static_cast<std::uint32_t>(more.size());
          item.Store(unit.data());
        } else if (out_ && said_->release == NodeRelease::kLater) {
          item.code = said_->CodeOf(item.code);
          item.Store(unit.data());
        }
        if (body_left_ > 0) {
          unit_ = Unit::kBody;
        } else if (items_left_ == 0) {
          unit_ = Unit::kEnd;
        }
        break;
      }
      case Unit::kBody:
        body_left_ -= unit.size();
        if (body_left_ == 0) unit_ = items_left_ > 0 ? Unit::kItem : Unit::kEnd;
        break;
      case Unit::kEnd: unit_ = Unit::kBatch; break;
    }
    out.push_back(std::move(unit));
  }
  static std::uint64_t Marked(std::uint64_t id) { return id | RailBatchHead::kAnyOrder; }

  const std::shared_ptr<Said> said_;
  const bool out_;
  Unit unit_ = Unit::kBatch;
  std::uint32_t items_ = 0, items_left_ = 0;
  std::uint64_t body_left_ = 0;
};

class ReleaseStream final : public net::Stream {
 public:
  ReleaseStream(std::unique_ptr<net::Stream> below, std::unique_ptr<Rewriter> in,
                std::unique_ptr<Rewriter> out)
      : below_(std::move(below)), in_(std::move(in)), out_(std::move(out)), room_(64u << 10) {}
  Executor& executor() override { return below_->executor(); }
  Task<Result<std::size_t>> Receive(std::span<const net::Piece> into, Instant deadline) override {
    while (came_.empty()) {
      const net::Piece room(room_);
      const Result<std::size_t> bytes = co_await below_->Receive({&room, 1}, deadline);
      if (!bytes || *bytes == 0) co_return bytes;
      Pieces made;
      in_->Take(ConstPiece(room_).first(*bytes), made);
      for (const Bytes& piece : made) came_.insert(came_.end(), piece.begin(), piece.end());
    }
    std::size_t given = 0;
    for (const net::Piece piece : into) {
      const std::size_t bytes = std::min(piece.size(), came_.size() - given);
      std::copy_n(came_.begin() + static_cast<std::ptrdiff_t>(given), bytes, piece.begin());
      given += bytes;
    }
    came_.erase(came_.begin(), came_.begin() + static_cast<std::ptrdiff_t>(given));
    co_return given;
  }
  Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) override {
    Pieces made;
    for (const ConstPiece piece : pieces) out_->Take(piece, made);
    const std::vector<ConstPiece> views(made.begin(), made.end());
    if (views.empty()) co_return Status();
    co_return co_await below_->Send(views, deadline);
  }
  void Close() override { below_->Close(); }
  const std::string& peer() const override { return below_->peer(); }

 private:
  const std::unique_ptr<net::Stream> below_;
  const std::unique_ptr<Rewriter> in_, out_;
  Bytes room_, came_;
};

std::unique_ptr<net::Stream> StreamOf(NodeRelease release, std::unique_ptr<net::Stream> below, bool rail,
                                      bool dialed, std::uint64_t seed) {
  const auto said = std::make_shared<Said>(Said{.release = release, .random = Random(seed)});
  std::unique_ptr<Rewriter> in, out;
  if (!rail) {
    in = std::make_unique<Frames>(said, false);
    out = std::make_unique<Frames>(said, true);
  } else if (dialed) {
    in = std::make_unique<Answers>(said, false);
    out = std::make_unique<Questions>(said, true);
  } else {
    in = std::make_unique<Questions>(said, false);
    out = std::make_unique<Answers>(said, true);
  }
  return std::make_unique<ReleaseStream>(std::move(below), std::move(in), std::move(out));
}

bool IsRail(std::string_view address) { return address.ends_with(":2"); }

class ReleaseListener final : public net::Listener {
 public:
  ReleaseListener(std::unique_ptr<net::Listener> below, NodeRelease release, std::uint64_t seed)
      : below_(std::move(below)), release_(release), random_(seed) {}
  Executor& executor() override { return below_->executor(); }
  Task<Result<std::unique_ptr<net::Stream>>> Accept(Instant deadline) override {
    auto stream = co_await below_->Accept(deadline);
    if (!stream) co_return Error(stream.error());
    co_return StreamOf(release_, std::move(*stream), IsRail(address()), false, random_.Next());
  }
  const Status& refused() const override { return below_->refused(); }
  const std::string& address() const override { return below_->address(); }

 private:
  const std::unique_ptr<net::Listener> below_;
  const NodeRelease release_;
  Random random_;
};

class ReleaseNetwork final : public net::Network {
 public:
  ReleaseNetwork(std::unique_ptr<net::Network> host, NodeRelease release, std::uint64_t seed)
      : host_(std::move(host)), release_(release), random_(seed) {}
  Executor& executor() override { return host_->executor(); }
  Task<Result<std::unique_ptr<net::Stream>>> Connect(std::string address, Instant deadline) override {
    auto stream = co_await host_->Connect(address, deadline);
    if (!stream) co_return Error(stream.error());
    co_return StreamOf(release_, std::move(*stream), IsRail(address), true, random_.Next());
  }
  Result<std::unique_ptr<net::Listener>> Listen(const std::string& address) override {
    auto listener = host_->Listen(address);
    if (!listener) return Error(listener.error());
    return std::unique_ptr<net::Listener>(
        std::make_unique<ReleaseListener>(std::move(*listener), release_, random_.Next()));
  }

 private:
  const std::unique_ptr<net::Network> host_;
  const NodeRelease release_;
  Random random_;
};

// Values but batches have a later version and fields behind.
class LaterEtcd final : public etcd::Etcd {
 public:
  explicit LaterEtcd(std::unique_ptr<etcd::Etcd> client) : client_(std::move(client)) {}
  Executor& executor() override { return client_->executor(); }
  Task<Result<etcd::RangeAnswer>> Range(etcd::RangeRequest request, Instant deadline) override {
    return client_->Range(std::move(request), deadline);
  }
  Task<Result<etcd::TransactionAnswer>> Commit(etcd::Transaction transaction, Instant deadline) override {
    for (etcd::Compare& one : transaction.conditions) {
      if (one.what == etcd::Compare::What::kValue) one.value = Later(one.key, one.value);
    }
    for (auto* operations : {&transaction.then, &transaction.otherwise}) {
      for (etcd::Operation& one : *operations) {
        if (one.kind == etcd::Operation::Kind::kPut) one.value = Later(one.keys.key, one.value);
      }
    }
    return client_->Commit(std::move(transaction), deadline);
  }
  Task<Result<etcd::LeaseAnswer>> Grant(std::int64_t ttl_s, Instant deadline) override {
    return client_->Grant(ttl_s, deadline);
  }
  Task<Result<etcd::LeaseAnswer>> KeepAlive(std::int64_t lease, Instant deadline) override {
    return client_->KeepAlive(lease, deadline);
  }
  Task<Status> Revoke(std::int64_t lease, Instant deadline) override {
    return client_->Revoke(lease, deadline);
  }
  std::unique_ptr<etcd::Watch> WatchFrom(etcd::KeyRange keys, std::int64_t revision) override {
    return client_->WatchFrom(std::move(keys), revision);
  }
  Task<Status> Compact(std::int64_t revision, Instant deadline) override {
    return client_->Compact(revision, deadline);
  }

 private:
  std::string Later(const std::string& key, std::string value) const {
    if (keys_.IsBatch(key) || value.size() < 2) return value;
    value[0] = 2;
    return value + "of a later release";
  }

  const std::unique_ptr<etcd::Etcd> client_;
  const CellKeys keys_{"/cistern/"};
};

}  // namespace

std::string_view ToString(NodeRelease release) {
  switch (release) {
    case NodeRelease::kEarlier: return "an earlier release";
    case NodeRelease::kThis: return "this release";
    case NodeRelease::kLater: return "a later release";
    case NodeRelease::kApart: return "a release apart";
  }
  return "";
}

std::unique_ptr<net::Network> NetworkOf(NodeRelease release, std::unique_ptr<net::Network> host,
                                        std::uint64_t seed) {
  if (release == NodeRelease::kThis) return host;
  return std::make_unique<ReleaseNetwork>(std::move(host), release, seed);
}

std::unique_ptr<etcd::Etcd> EtcdOf(NodeRelease release, std::unique_ptr<etcd::Etcd> client) {
  if (release != NodeRelease::kLater) return client;
  return std::make_unique<LaterEtcd>(std::move(client));
}

}  // namespace cistern::mesh
