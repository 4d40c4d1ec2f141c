// SPDX-License-Identifier: Apache-2.0
// Any bytes, and any frames, from the other end of a control connection, to one that asks, one that answers
// at once or late, and one whose own frames are not taken. Whatever comes: it ends, as gone; who asked has
// the first answer to his question, or learns of the end; notices are those that were said, in order; no more
// questions are answered at a time than the bound; and what is sent are frames, of which each answer belongs
// to a question.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "io/simulated_loop.h"
#include "net/control_connection.h"
#include "net/fuzz_stream.h"

namespace {

using namespace cistern;
using namespace cistern::net;

constexpr std::uint32_t kHelloMagic = 0x4f4c4843;
constexpr std::size_t kAsks = 2;
constexpr std::array<std::int64_t, kAsks> kDeadlineUs = {10'000'000, 100'000};
constexpr std::size_t kMostBytes = 256u << 10;  // of frames
constexpr std::size_t kMostShown = 2'000;
// Four of them, with their heads, are all that may wait to be sent.
constexpr std::size_t kLargeBytes = ControlLimits::kUnsentBytes / 4 - FrameHead::kBytes;
constexpr std::size_t kMostLarge = 8;

struct Frame {
  FrameHead head;
  ConstPiece payload;
};

// The whole frames at the front.
std::vector<Frame> FramesOf(ConstPiece bytes) {
  std::vector<Frame> frames;
  while (bytes.size() >= FrameHead::kBytes) {
    const FrameHead head = FrameHead::Load(bytes.data());
    bytes = bytes.subspan(FrameHead::kBytes);
    const bool whole = head.payload_bytes <= bytes.size();
    if (!whole || head.payload_bytes > ControlLimits::kPayloadBytes) break;
    frames.push_back({head, bytes.first(head.payload_bytes)});
    bytes = bytes.subspan(head.payload_bytes);
  }
  return frames;
}

void AppendFrame(std::vector<std::byte>& out, FrameHead head, ConstPiece payload) {
  head.payload_bytes = static_cast<std::uint32_t>(payload.size());
  const std::size_t at = out.size();
  out.resize(at + FrameHead::kBytes);
  head.Store(out.data() + at);
  out.insert(out.end(), payload.begin(), payload.end());
}

void AppendHello(std::vector<std::byte>& out) {
  std::vector<std::byte> said;
  Encoder to(said);
  to.U32(kHelloMagic);
  to.U16(1);
  to.U16(3);
  to.U64(7);
  to.String("fuzz");
  AppendFrame(out, {.kind = FrameKind::kHello}, said);
}

// Frames that are whole, said in 7 bytes each and as many as the payload has; some of them many times.
void AppendFrames(std::vector<std::byte>& out, ConstPiece said) {
  while (said.size() >= 7 && out.size() < kMostBytes) {
    const auto byte = [said](std::size_t at) { return std::to_integer<std::uint8_t>(said[at]); };
    const FrameHead head{.kind = static_cast<FrameKind>(byte(0)),
                         .code = byte(1),
                         .type = byte(2),
                         .id = byte(3),
                         .remaining_us = static_cast<std::uint32_t>(byte(4)) << 16};
    const std::size_t times = 1 + byte(5) % 128;
    const std::size_t bytes = std::min<std::size_t>(byte(6), said.size() - 7);
    for (std::size_t i = 0; i < times; ++i) AppendFrame(out, head, said.subspan(7, bytes));
    said = said.subspan(7 + bytes);
  }
}

class FuzzHandler final : public ControlHandler {
 public:
  explicit FuzzHandler(Executor& runs_on) : executor_(runs_on) {}
  Executor& executor() { return executor_; }
  Task<Result<std::vector<std::byte>>> Answer(std::uint16_t type, ConstPiece payload,
                                              Instant deadline) override {
    ++open;
    most_open = std::max(most_open, open);
    if (type % 5 == 1) co_await Yield();
    if (type % 5 == 2) (void)co_await SleepUntil(deadline);
    --open;
    if (type % 5 == 3) co_return Error(Code::kMismatch, "fuzz: no such question");
    if (type % 5 == 4 && large < kMostLarge) {
      ++large;
      co_return std::vector<std::byte>(kLargeBytes);
    }
    co_return std::vector<std::byte>(payload.begin(), payload.end());
  }
  void Notice(std::uint16_t type, ConstPiece payload) override {
    notices.emplace_back(type, std::vector<std::byte>(payload.begin(), payload.end()));
  }

  std::size_t open = 0, most_open = 0, large = 0;
  std::vector<std::pair<std::uint16_t, std::vector<std::byte>>> notices;

 private:
  Executor& executor_;
};

// What a stranger says reaches messages as text of bounded length.
void CheckText(const Status& status) {
  CISTERN_ASSERT(status.message().size() <= kMostShown);
  CISTERN_ASSERT(std::ranges::all_of(status.message(), [](char c) { return c >= ' ' && c <= '~'; }));
}

// What the frames behind the hello lead to, up to the one that ends the connection.
struct Expected {
  std::vector<Frame> notices;
  std::map<std::uint32_t, std::size_t> questions;   // by id
  std::array<std::optional<Frame>, kAsks> answers;  // the first to each question that was asked
};
Expected ExpectedOf(std::span<const Frame> frames, std::size_t asks) {
  Expected expected;
  for (const Frame& frame : frames) {
    const FrameHead& head = frame.head;
    if (head.kind == FrameKind::kHello) break;
    if (head.kind == FrameKind::kNotice) expected.notices.push_back(frame);
    if (head.kind == FrameKind::kQuestion) ++expected.questions[head.id];
    if (head.kind != FrameKind::kAnswer || head.id == 0 || head.id > asks) continue;
    std::optional<Frame>& answer = expected.answers[head.id - 1];
    if (answer) continue;
    answer = frame;
  }
  return expected;
}

// One Send may have gone on its way when the connection ended: what was taken are whole frames all the same.
void CheckSent(ConstPiece sent, const Expected& expected, std::size_t asks) {
  std::map<std::uint32_t, std::size_t> answers;
  std::size_t asked = 0, bytes = 0;
  for (const Frame& frame : FramesOf(sent)) {
    const FrameKind kind = frame.head.kind;
    CISTERN_ASSERT((kind == FrameKind::kHello) == (bytes == 0));
    CISTERN_ASSERT(kind >= FrameKind::kHello && kind <= FrameKind::kAnswer);
    bytes += FrameHead::kBytes + frame.payload.size();
    if (kind == FrameKind::kQuestion) ++asked;
    if (kind != FrameKind::kAnswer) continue;
    const auto question = expected.questions.find(frame.head.id);
    CISTERN_ASSERT(question != expected.questions.end());
    CISTERN_ASSERT(++answers[frame.head.id] <= question->second);
  }
  CISTERN_ASSERT(bytes == sent.size() && asked <= asks);
}

void CheckAnswer(const Result<std::vector<std::byte>>& got, const std::optional<Frame>& said,
                 bool overflowed) {
  if (!got) CheckText(got.error());
  const Code code = got ? Code::kOk : got.error().code();
  const bool ended = code == Code::kGone || code == Code::kTooLate;
  if (!said || (overflowed && ended)) {
    CISTERN_ASSERT(ended);
    return;
  }
  const bool known = said->head.code <= static_cast<std::uint8_t>(kLastCode);
  CISTERN_ASSERT(known ? static_cast<std::uint8_t>(code) == said->head.code : code == Code::kMismatch);
  if (got) CISTERN_ASSERT(std::ranges::equal(*got, said->payload));
}

void CheckNotices(const FuzzHandler& handler, const Expected& expected, bool overflowed) {
  CISTERN_ASSERT(handler.notices.size() <= expected.notices.size());
  CISTERN_ASSERT(overflowed || handler.notices.size() == expected.notices.size());
  for (std::size_t i = 0; i < handler.notices.size(); ++i) {
    CISTERN_ASSERT(handler.notices[i].first == expected.notices[i].head.type);
    CISTERN_ASSERT(std::ranges::equal(handler.notices[i].second, expected.notices[i].payload));
  }
}

Task<void> Ended(Executor&, ControlConnection& connection) { co_await connection.Ended(); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto flag = [data](unsigned bit) { return ((data[0] >> bit) & 1u) != 0; };
  const ConstPiece input = std::as_bytes(std::span(data + 2, size - 2));
  const bool greets = flag(0), framed = flag(1), stands_still = flag(3);
  const std::size_t asks = flag(2) ? kAsks : 0;
  std::vector<std::byte> bytes, sent;
  if (greets) AppendHello(bytes);
  if (framed) {
    AppendFrames(bytes, input);
  } else {
    bytes.insert(bytes.end(), input.begin(), input.end());
  }
  const std::vector<Frame> frames = FramesOf(bytes);
  const std::size_t hello_bytes =
      frames.empty() ? bytes.size() : FrameHead::kBytes + frames[0].payload.size();

  SimulatedClock clock;
  io::SimulatedDisk disk(1);
  auto loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  auto stream = std::make_unique<FuzzStream>(
      loop->executor(), bytes,
      FuzzStream::Options{.step = 1u + data[1],
                          .waits_at = hello_bytes,
                          .at_once = flag(5),
                          .falls_silent = flag(4),
                          .takes = stands_still ? std::size_t{1} : ~std::size_t{0},
                          .sent = &sent});
  FuzzStream& other_end = *stream;
  FuzzHandler handler(loop->executor());
  auto opened = loop->BlockOn(ControlConnection::Open(
      loop->executor(), std::move(stream),
      {.process_number = 3, .member = "here", .lowest_version = 1, .highest_version = 2}, handler,
      clock.Now().PlusUs(kDeadlineUs[0])));
  if (!opened) {
    CISTERN_ASSERT(!greets);
    CheckText(opened.error());
    return 0;
  }
  ControlConnection& connection = **opened;
  std::vector<Task<Result<std::vector<std::byte>>>> asked;
  for (std::size_t i = 0; i < asks; ++i)
    asked.push_back(connection.Ask(1, input.first(0), clock.Now().PlusUs(kDeadlineUs[i])));
  other_end.Go();
  loop->BlockOn(Ended(loop->executor(), connection));
  CISTERN_ASSERT(connection.status().code() == Code::kGone);
  CheckText(connection.status());

  const Expected expected = ExpectedOf(std::span(frames).subspan(1), asks);
  const bool overflowed = handler.large >= 4;
  for (std::size_t i = 0; i < asks; ++i)
    CheckAnswer(loop->BlockOn(std::move(asked[i])), expected.answers[i], overflowed);
  CISTERN_ASSERT(connection.Tell(1, {}).code() == Code::kGone);
  loop->BlockOn(connection.Close());
  static_cast<io::SimulatedLoop&>(*loop).RunUntilIdle();
  CISTERN_ASSERT(handler.open == 0 && handler.most_open <= ControlLimits::kQuestions);
  CheckNotices(handler, expected, overflowed);
  CheckSent(sent, expected, asks);
  return 0;
}
