// SPDX-License-Identifier: Apache-2.0
// Blocks that another process has, read over rails of loopback TCP into slots and checked on arrival, against
// what two iperf3 move in the same run, where there is an iperf3. The server lives in a child process with
// one thread, the reader in this one, so both ends share the host's cores as iperf3's do.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <list>
#include <optional>

#include "base/codec.h"
#include "base/fd.h"
#include "base/fence.h"
#include "base/format.h"
#include "base/random_bytes.h"
#include "base/units.h"
#include "child.h"
#include "io/loop.h"
#include "line.h"
#include "measure.h"
#include "net/rail.h"
#include "net/sealed_stream.h"
#include "net/tcp_network.h"
#include "record/verified_copy.h"

namespace cistern {
namespace {

constexpr std::size_t kSegmentBytes = 64u << 10;
constexpr std::size_t kRails = 2;
constexpr std::size_t kBatchesOfARail = 3;
constexpr std::uint64_t kRoundBytes = 3ull << 30;
constexpr std::int64_t kDeadlineUs = 60'000'000;

// What both processes see: the server's blocks, and each segment's checksum.
class Blocks final {
 public:
  static Result<Blocks> Make(std::size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return Error(Code::kBusy, Text("there is no room for ", SizeText(bytes)));
    return Blocks(static_cast<std::byte*>(at), bytes);
  }
  Blocks(Blocks&& other) noexcept
      : at_(std::exchange(other.at_, nullptr)), bytes_(other.bytes_), crcs_(std::move(other.crcs_)) {}
  Blocks& operator=(Blocks&&) = delete;
  ~Blocks() {
    if (at_ != nullptr) munmap(at_, bytes_);
  }

  std::size_t size() const { return bytes_; }
  std::span<const std::byte> at(std::size_t offset, std::size_t bytes) const { return {at_ + offset, bytes}; }
  std::uint32_t crc(std::size_t offset) const { return crcs_[offset / kSegmentBytes]; }

 private:
  Blocks(std::byte* at, std::size_t bytes) : at_(at), bytes_(bytes) {
    FillRandom(11, {at, bytes});
    for (std::size_t offset = 0; offset < bytes; offset += kSegmentBytes) {
      crcs_.push_back(record::Crc32c(at + offset, kSegmentBytes));
    }
  }
  std::byte* at_;
  std::size_t bytes_;
  std::vector<std::uint32_t> crcs_;
};

// A question is an offset and a length; a head is the body's checksums.
class BlockSource final : public net::RailSource {
 public:
  BlockSource(Executor& executor, const Blocks& blocks) : executor_(executor), blocks_(blocks) {}
  Executor& executor() { return executor_; }

  Task<Answer> Find(net::ConstPiece question, Instant) override {
    Decoder in(question);
    const std::uint64_t offset = in.U64();
    const std::uint32_t bytes = in.U32();
    Answer answer;
    if (!in.done() || offset + bytes > blocks_.size()) {
      answer.status = Status(Code::kMiss);
      co_return answer;
    }
    Encoder head(answer.head);
    for (std::uint64_t at = offset; at < offset + bytes; at += kSegmentBytes) head.U32(blocks_.crc(at));
    answer.body = {blocks_.at(offset, bytes)};
    co_return answer;
  }
  bool Stands(std::uint64_t) const override { return true; }
  bool Sent(std::uint64_t) override { return true; }

 private:
  Executor& executor_;
  const Blocks& blocks_;
};

struct Connection {
  std::unique_ptr<net::Stream> stream;
  Task<Status> serving;
};

Task<Status> ServeOne(Executor& executor, Connection& connection, const net::TlsContext* tls,
                      BlockSource& source) {
  if (tls != nullptr) {
    auto sealed = co_await net::SealStream(executor, *tls, net::TlsRole::kServer,
                                           std::move(connection.stream), executor.Now().PlusUs(kDeadlineUs));
    if (!sealed) co_return sealed.error();
    connection.stream = std::move(*sealed);
  }
  co_return co_await net::ServeRail(*connection.stream, source);
}

Task<void> Accept(Executor& executor, net::Listener& listener, const net::TlsContext* tls,
                  BlockSource& source, std::list<Connection>& connections) {
  for (;;) {
    auto stream = co_await listener.Accept(Instant::Never());
    if (!stream) co_return;
    Connection& made = connections.emplace_back();
    made.stream = std::move(*stream);
    made.serving = ServeOne(executor, made, tls, source);
  }
}

// Serves in a child process until it is ended.
class Server final {
 public:
  Server(const Blocks& blocks, const net::TlsContext* tls) {
    int ends[2];
    CISTERN_ASSERT(pipe2(ends, O_CLOEXEC) == 0);
    Fd from(ends[0]), to(ends[1]);
    Result<Child> process = Child::Start([&] {
      SystemClock clock;
      auto loop = io::MakeLoop(clock);
      if (!loop) _exit(1);
      net::TcpNetwork network(**loop);
      auto listener = network.Listen("127.0.0.1:0");
      if (!listener) _exit(1);
      const std::string& address = (*listener)->address();
      if (write(to.get(), address.data(), address.size()) < 0) _exit(1);
      to.Close();
      BlockSource source((*loop)->executor(), blocks);
      std::list<Connection> connections;
      Task<void> accepting = Accept((*loop)->executor(), **listener, tls, source, connections);
      (*loop)->Run();
    });
    CISTERN_ASSERT(process);
    process_ = std::move(*process);
    to.Close();
    std::array<char, 64> address{};
    const ssize_t size = read(from.get(), address.data(), address.size());
    address_.assign(address.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  }
  const std::string& address() const { return address_; }

 private:
  Child process_;
  std::string address_;
};

// The slots of one batch, used over and over with those of the others: what arrives is checked by segments.
class SlotSink final : public net::RailSink {
 public:
  SlotSink(BenchOptions& options, std::byte* slots, std::size_t block_bytes)
      : options_(options), slots_(slots), block_bytes_(block_bytes) {}
  void Use(std::byte* slots) { slots_ = slots; }

  Status Begin(std::uint32_t item, net::ConstPiece head, std::uint64_t body_bytes) override {
    if (body_bytes != block_bytes_) return Status(Code::kInvalid, "a block of another size");
    crcs_.assign(head.begin(), head.end());
    slot_ = slots_ + item * block_bytes_;
    landed_ = 0;
    crc_ = 0;
    good_ = true;
    return Status();
  }
  void Take(std::uint32_t, net::ConstPiece bytes) override {
    const record::CopyKernels& kernels = record::ChosenKernels();
    while (!bytes.empty()) {
      const std::size_t step = std::min(bytes.size(), kSegmentBytes - landed_ % kSegmentBytes);
      crc_ = kernels.copy_stream(slot_ + landed_, bytes.data(), step, crc_, bytes.size() - step);
      landed_ += step;
      bytes = bytes.subspan(step);
      if (landed_ % kSegmentBytes != 0) continue;
      good_ = good_ && crc_ == LoadAt<std::uint32_t>(crcs_.data(), (landed_ / kSegmentBytes - 1) * 4);
      crc_ = 0;
    }
  }
  void End(std::uint32_t, const Status& status) override {
    StreamingStoreFence();
    options_.bytes_verified += block_bytes_;
    if (!status.ok() || !good_) options_.wrong_bytes += block_bytes_;
  }

 private:
  BenchOptions& options_;
  std::byte* slots_;
  const std::size_t block_bytes_;
  std::vector<std::byte> crcs_;
  std::byte* slot_ = nullptr;
  std::size_t landed_ = 0;
  std::uint32_t crc_ = 0;
  bool good_ = true;
};

class NetBench final {
 public:
  NetBench(BenchOptions& options, const Blocks& blocks, const net::TlsContext* tls)
      : options_(options), blocks_(blocks), tls_(tls), server_(blocks, tls), slots_(kSlotBytes) {}

  Status Connect() {
    auto loop = io::MakeLoop(clock_);
    if (!loop) return loop.error();
    loop_ = std::move(*loop);
    net::TcpNetwork network(*loop_);
    for (std::size_t i = 0; i < kRails; ++i) {
      const Instant deadline = clock_.Now().PlusUs(kDeadlineUs);
      auto stream = loop_->BlockOn(network.Connect(server_.address(), deadline));
      if (stream && tls_ != nullptr) {
        stream = loop_->BlockOn(
            net::SealStream(loop_->executor(), *tls_, net::TlsRole::kClient, std::move(*stream), deadline));
      }
      if (!stream) return stream.error();
      rails_.push_back(std::make_unique<net::RailReader>(std::move(*stream)));
    }
    return Status();
  }

  // A round of random blocks in batches over all rails.
  Status Round(std::size_t block_bytes, std::size_t batch_items, Samples& series) {
    left_ = kRoundBytes;
    const Stopwatch watch;
    std::vector<Task<Status>> drivers;
    for (const auto& rail : rails_) {
      for (std::size_t i = 0; i < kBatchesOfARail; ++i) {
        drivers.push_back(Drive(*rail, block_bytes, batch_items, series));
      }
    }
    Status status;
    for (Task<Status>& driver : drivers) {
      Status one = loop_->BlockOn(std::move(driver));
      if (status.ok()) status = std::move(one);
    }
    series.rounds.push_back(static_cast<double>(kRoundBytes) / static_cast<double>(watch.Ns()));
    return status;
  }
  void End() {
    for (const auto& rail : rails_) rail->Close();
    while (loop_->PollOnce()) {
    }
  }

  Executor& executor() { return loop_->executor(); }

 private:
  static constexpr std::size_t kSlotBytes = 512u << 20;

  Task<Status> Drive(net::RailReader& rail, std::size_t block_bytes, std::size_t batch_items,
                     Samples& series) {
    const std::size_t batch_bytes = block_bytes * batch_items;
    SlotSink sink(options_, nullptr, block_bytes);
    std::vector<std::array<std::byte, 12>> questions(batch_items);
    const std::vector<net::ConstPiece> asked(questions.begin(), questions.end());
    while (left_ > 0) {
      left_ -= std::min<std::uint64_t>(left_, batch_bytes);
      if (next_slot_ + batch_bytes > slots_.size()) next_slot_ = 0;
      sink.Use(slots_.data() + std::exchange(next_slot_, next_slot_ + batch_bytes));
      for (std::array<std::byte, 12>& question : questions) {
        StoreAt(question.data(), 0, random_.Below(blocks_.size() / block_bytes) * block_bytes);
        StoreAt(question.data(), 8, static_cast<std::uint32_t>(block_bytes));
      }
      const Instant start = clock_.Now();
      if (Status status = co_await rail.Read(asked, sink, start.PlusUs(kDeadlineUs)); !status.ok())
        co_return status;
      series.call_us.push_back(static_cast<double>(clock_.Now().NsSince(start)) / 1e3);
    }
    co_return Status();
  }

  BenchOptions& options_;
  const Blocks& blocks_;
  const net::TlsContext* const tls_;
  Server server_;
  Buffer slots_;
  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_;
  std::vector<std::unique_ptr<net::RailReader>> rails_;
  Random random_{5};
  std::size_t next_slot_ = 0;
  std::uint64_t left_ = 0;
};

}  // namespace

Status BenchNet(BenchOptions& options) {
  const bool has_limit = HasLine();
  Result<Blocks> blocks = Blocks::Make(options.working_set_bytes);
  if (!blocks) return blocks.error();
  net::CellKey key;
  FillRandom(3, key.bytes);
  Result<net::TlsContext> tls = net::TlsContext::OfCellKeys({&key, 1});
  if (!tls) return tls.error();
  NetBench plain(options, *blocks, nullptr), sealed(options, *blocks, &*tls);
  for (NetBench* bench : {&plain, &sealed}) {
    if (Status status = bench->Connect(); !status.ok()) return status;
  }
  struct Row {
    const char* name;
    NetBench& bench;
    std::size_t block_bytes, batch_items;
    Samples series = {};
  };
  std::array<Row, 4> rows = {{{"net_read_8x64KiB", plain, 64u << 10, 8},
                              {"net_read_2MiB", plain, 2u << 20, 1},
                              {"net_read_8x64KiB_sealed", sealed, 64u << 10, 8},
                              {"net_read_2MiB_sealed", sealed, 2u << 20, 1}}};
  Samples line;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    options.progress(Text("net_*, round ", round + 1, " of ", options.rounds));
    if (has_limit) {
      Result<double> rate = LineRate(kRoundBytes);
      if (!rate) return rate.error();
      line.rounds.push_back(*rate);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Row& row = rows[(i + round) % rows.size()];
      if (Status status = row.bench.Round(row.block_bytes, row.batch_items, row.series); !status.ok())
        return status;
    }
  }
  plain.End();
  sealed.End();
  for (const Row& row : rows) {
    options.row(RateRow(row.name, LineName(), row.series, line));
  }
  return Status();
}

}  // namespace cistern
