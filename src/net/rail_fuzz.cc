// SPDX-License-Identifier: Apache-2.0
// Any bytes from the other end of a rail: what a reader takes for answers, a server for questions, an opener
// for sealed chunks, with a fabric and without. Nothing is read or written past its end, each item ends once,
// the source is told of the end of all that it found, and the call ends.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "io/simulated_loop.h"
#include "net/fabric.h"
#include "net/fuzz_stream.h"
#include "net/rail.h"
#include "net/sealed_stream.h"

namespace {

using namespace cistern;
using namespace cistern::net;

constexpr std::int64_t kDeadlineUs = 1'000;

class FuzzSink final : public RailSink {
 public:
  Status Begin(std::uint32_t, ConstPiece head, std::uint64_t body_bytes) override {
    if (body_bytes > (1u << 20) || head.size() % 3 == 1) return Status(Code::kBusy, "no room");
    left_ = body_bytes;
    return Status();
  }
  void Take(std::uint32_t, ConstPiece bytes) override {
    CISTERN_ASSERT(!bytes.empty() && bytes.size() <= left_);
    left_ -= bytes.size();
  }
  void End(std::uint32_t, const Status&) override { ++ends; }
  std::uint32_t ends = 0;

 private:
  std::uint64_t left_ = 0;
};

class FuzzSource final : public RailSource {
 public:
  explicit FuzzSource(Executor& runs_on) : executor_(runs_on) {}
  Executor& executor() { return executor_; }
  Task<Answer> Find(ConstPiece question, Instant) override {
    co_await Yield();
    Answer answer;
    if (question.size() % 2 == 1) answer.status = Status(Code::kMiss);
    if (answer.status.ok()) ++open;
    answer.body = {body_};
    co_return answer;
  }
  bool Stands(std::uint64_t) const override { return true; }
  bool Sent(std::uint64_t) override {
    --open;
    return true;
  }
  int open = 0;

 private:
  Executor& executor_;
  std::array<std::byte, 100> body_{};
};

// Every body lies in its memory. Reads bring zeros, and some fail.
class FuzzFabric final : public Fabric {
 public:
  explicit FuzzFabric(Executor& runs_on) : executor_(runs_on) {}
  Executor& executor() override { return executor_; }
  const std::string& kind() const override { return kind_; }
  ConstPiece name() const override { return name_; }
  std::optional<FabricPlace> PlaceOf(ConstPiece bytes) const override {
    return FabricPlace{reinterpret_cast<std::uintptr_t>(bytes.data()), 1};
  }
  Result<std::unique_ptr<FabricReader>> ReaderOf(ConstPiece) override {
    return std::make_unique<Reader>(executor_);
  }

 private:
  class Reader final : public FabricReader {
   public:
    explicit Reader(Executor& runs_on) : executor_(runs_on), buffer_(kReads * kReadBytes) {}
    Executor& executor() override { return executor_; }
    Piece buffer() override { return buffer_; }
    Task<Status> Read(FabricPlace from, Piece into, Instant) override {
      co_await Yield();
      if (closed_ || from.key % 5 == 4) co_return Status(Code::kGone, "refused");
      std::ranges::fill(into, std::byte{0});
      co_return Status();
    }
    void Close() override { closed_ = true; }

   private:
    Executor& executor_;
    std::vector<std::byte> buffer_;
    bool closed_ = false;
  };

  Executor& executor_;
  const std::string kind_ = "fuzz";
  const std::array<std::byte, 1> name_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  SimulatedClock clock;
  io::SimulatedDisk disk(1);
  auto loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  const ConstPiece bytes = std::as_bytes(std::span(data + 2, size - 2));
  std::unique_ptr<Stream> stream =
      std::make_unique<FuzzStream>(loop->executor(), bytes, FuzzStream::Options{.step = 1u + data[1]});
  if ((data[0] & 2) != 0) stream = std::make_unique<SealedStream>(std::move(stream), SealedKeys());
  FuzzFabric over(loop->executor());
  Fabric* const fabric = (data[0] & 4) != 0 ? &over : nullptr;
  if ((data[0] & 1) != 0) {
    FuzzSource source(loop->executor());
    (void)loop->BlockOn(ServeRail(*stream, source, fabric));
    CISTERN_ASSERT(source.open == 0);
    return 0;
  }
  RailReader reader(std::move(stream), fabric);
  FuzzSink first, second;
  const std::array<std::byte, 4> question{};
  const std::array<ConstPiece, 3> asked = {question, question, question};
  auto one = reader.Read(asked, first, clock.Now().PlusUs(kDeadlineUs));
  auto two = reader.Read(std::span(asked).first(1), second, clock.Now().PlusUs(kDeadlineUs));
  const bool asked_two = !two.done();
  (void)loop->BlockOn(std::move(one));
  (void)loop->BlockOn(std::move(two));
  CISTERN_ASSERT(first.ends == 3 && (!asked_two || second.ends == 1));
  reader.Close();
  static_cast<io::SimulatedLoop&>(*loop).RunUntilIdle();
  return 0;
}
