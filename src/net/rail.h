// SPDX-License-Identifier: Apache-2.0
// A rail: a connection that carries blocks from the member that has them to the one that asks. One end, the
// reader, asks in batches; the other, the server, answers them in order, each item as it becomes ready, with
// one vectored send from where the bytes lie. They are received into one small buffer of the rail's, which
// stays in the cache, and whoever reads blocks puts them in their place from there. Neither end knows what a
// question or a head says: those who read and serve blocks do.
//
// Where both ends have a fabric of one kind, bodies that lie in memory which the reader may read itself stay
// where they are: the answer says where, the reader fetches them, and asks for the rest and for the verdict
// behind it. Whatever fails there, the stream carries; who reads and serves blocks does not notice.
//
// docs/formats/wire.md describes the messages. What a rail promises: the bytes of an item are those that the
// other side sent, or the item has an error; whether they are right is for the caller to check by what the
// head says, and whether they were one record's all the while the server says behind the last byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/event.h"
#include "base/task_group.h"
#include "net/bandwidth.h"
#include "net/fabric.h"
#include "net/outbox.h"
#include "net/pieces.h"
#include "net/rail_message.h"
#include "net/stream.h"

namespace cistern::net {

struct RailLimits {
  static constexpr std::size_t kBatchItems = 64;
  static constexpr std::size_t kQuestionBytes = 1024;  // of an item
  static constexpr std::size_t kHeadBytes = 16u << 10;
  static constexpr std::uint64_t kBodyBytes = 1ull << 30;
  static constexpr std::size_t kBatches = 16;           // asked and not yet answered
  static constexpr std::int64_t kBatchUs = 60'000'000;  // that one may take
  // An end that takes nothing for so long has lost the rail.
  static constexpr std::int64_t kStallUs = 3'000'000;
};

// What receives the items of one batch.
class RailSink {
 public:
  // An item's answer begins. An error refuses it: its bytes are dropped, and it ends with this error. `head`
  // is valid meanwhile.
  virtual Status Begin(std::uint32_t item, ConstPiece head, std::uint64_t body_bytes) = 0;
  // The next bytes of its body, never more than `body_bytes` in all: valid meanwhile, and in this core's
  // cache, so that they are checked and put in their place in one pass.
  virtual void Take(std::uint32_t item, ConstPiece bytes) = 0;
  // The item's end, once for each item of the batch, before the batch ends; no Take of it follows. ok: its
  // body is whole and was one record's. kLapsed: it was not, and may be asked for again. kMiss: the server
  // has none; other codes are the server's, the sink's or the connection's.
  virtual void End(std::uint32_t item, const Status& status) = 0;

 protected:
  ~RailSink() = default;
};

class RailReader final {
 public:
  // A fetch over the fabric has half of the time that its batch has, and at most so much: then the stream's.
  static constexpr std::int64_t kFabricUs = 1'000'000;
  // After a failure the fabric is left alone for so long, twice as long after each further one.
  static constexpr std::int64_t kRestUs = 1'000'000, kMostRestUs = 30'000'000;

  // The fabric is borrowed; null: the stream carries everything. So is `freed`, which is pulsed when fewer
  // are outstanding, or the rail has ended; null: nobody waits for that.
  explicit RailReader(std::unique_ptr<Stream> stream, Fabric* fabric = nullptr, Event* freed = nullptr);
  // No Read is under way.
  ~RailReader();
  RailReader(const RailReader&) = delete;
  RailReader& operator=(const RailReader&) = delete;

  Executor& executor() { return stream_->executor(); }

  // Asks, and ends when every item has ended. ok says that each had its answer; kTooLate that the deadline
  // came first: items without an answer ended with it, and the rail goes on. kBusy: kBatches are outstanding,
  // or the batch is over a limit, which is named; nothing was asked. kGone: the rail broke. The questions are
  // copied.
  Task<Status> Read(std::span<const ConstPiece> questions, RailSink& sink, Instant deadline);

  std::size_t outstanding() const { return batches_.size() + parked_.size(); }
  // Why the rail ended; ok while it has not.
  const Status& status() const { return broken_; }
  void Close();

  // What the fabric last failed with; ok: it has not.
  const Status& fabric_status() const { return fabric_failed_; }

 private:
  // A body that lies where the answer says.
  struct Placed {
    FabricPlace place;
    std::uint64_t bytes = 0, landed = 0;
    bool wanted = false;  // from the stream, what has not landed
  };
  struct Batch {
    std::uint64_t id = 0;
    std::uint32_t items = 0;
    RailSink* sink = nullptr;  // null: nobody waits for it any more
    Instant deadline;
    bool answering = false;
    bool taken = false;           // the verdict is asked for
    std::vector<Status> outcome;  // of each item that has begun
    std::vector<Placed> placed;   // by item, as far as they were answered
    Event done;
    Status status;
  };

  // The way to the other side's memory, shared by the fetches that use it.
  struct Way {
    std::unique_ptr<FabricReader> reader;
    std::vector<std::size_t> free;  // parts of the reader's buffer
    Event freed;
    bool failed = false;
  };
  // A part of a body on its way.
  struct Flying {
    Task<Status> read;
    std::size_t part = 0;
    std::uint32_t item = 0;
    std::size_t bytes = 0;
  };

  Task<void> Run();
  // For what follows the head, behind what is unsent.
  Encoder BeginMessage(const RailBatchHead& head);
  // What is unsent of them, and what is added meanwhile.
  Task<void> SendQuestions();
  Task<void> Greet();
  Task<Status> Greeted(RailBatchHead head);
  void OpenWay();
  // No further fetch goes this way, and none another before `rest_us` have passed.
  void Fail(const std::shared_ptr<Way>& way, const Status& why, std::int64_t rest_us);
  // Fetches what is placed, then asks for the rest and the verdict.
  Task<void> Fetch(std::shared_ptr<Batch> batch);
  Task<Status> FetchBodies(Batch& batch, Way& way, Instant deadline);
  void Land(Batch& batch, const Flying& landed, ConstPiece bytes);
  Task<Status> Judge(RailBatchHead head);
  void EndItems(Batch& batch, std::span<const std::byte> whole);
  Task<Status> Answer(std::shared_ptr<Batch> answered);
  Task<Status> ReceiveItem(Batch& batch, std::uint32_t item);
  // So many bytes, for the sink if it still wants them.
  Task<Status> ReceiveBody(Batch& batch, std::uint32_t item, std::uint64_t bytes);
  // Exactly so many bytes.
  Task<Status> Take(Batch* batch, std::span<std::byte> into);
  // The bytes that come next, at least one and at most `most`, valid until the next call; or none: the
  // batch's deadline has passed, so it has no sink any more.
  Task<Result<ConstPiece>> Next(Batch* batch, std::uint64_t most);
  Status Late() const;
  // Ends what of the batch has not ended.
  void GiveUp(Batch& batch, const Status& why);

  std::unique_ptr<Stream> stream_;
  Fabric* const fabric_;
  Event* const freed_;
  std::vector<std::shared_ptr<Batch>> batches_;  // asked and not yet answered
  std::vector<std::shared_ptr<Batch>> parked_;   // answered, but for their bodies
  std::vector<std::byte> fabric_name_;           // the other side's; empty: it has none for us
  std::shared_ptr<Way> way_;
  Instant fabric_again_;
  std::int64_t rest_us_ = kRestUs;
  Status fabric_failed_;
  std::uint64_t last_id_ = 0;
  Outbox questions_;
  bool sending_ = false;         // of them
  std::vector<std::byte> came_;  // what came and was not taken yet, from came_at_ to came_end_
  std::size_t came_at_ = 0, came_end_ = 0;
  Status broken_;
  TaskGroup fetches_;
  Task<void> run_;
};

// What has the blocks that a rail sends.
class RailSource {
 public:
  struct Answer {
    Status status;                 // kMiss, kBusy, kTooLate ...: its code is sent, and no body
    std::vector<std::byte> head;   // at most RailLimits::kHeadBytes
    std::vector<ConstPiece> body;  // readable until Sent or Unsent, here and, in one piece, over the fabric
    std::uint64_t handle = 0;      // the source's own
  };
  virtual Task<Answer> Find(ConstPiece question, Instant deadline) = 0;
  // Asked when an answer's turn to be sent comes: whether its body still is the record that was found. If
  // not, it is looked for again, after Unsent. A source that keeps what it found says yes.
  virtual bool Stands(std::uint64_t handle) const = 0;
  // The network has the last byte of an answer that was ok; once for each. Whether the body was one record's
  // all the while.
  virtual bool Sent(std::uint64_t handle) = 0;
  // In place of it, for an answer of which not all was sent.
  virtual void Unsent(std::uint64_t handle) { (void)Sent(handle); }

 protected:
  ~RailSource() = default;
};

// Answers batches until the reader closes the stream, which is ok, or breaks it. kInvalid: it says what is no
// question; the stream is closed. The fabric is borrowed; null: the stream carries everything. So is the
// bound on what the stream carries, which rails share; null: there is none. An item whose turn would come
// after its deadline is kBusy; bodies that the other side fetches over the fabric are bounded there.
Task<Status> ServeRail(Stream& stream, RailSource& source, const Fabric* fabric = nullptr,
                       Bandwidth* bandwidth = nullptr);

}  // namespace cistern::net
