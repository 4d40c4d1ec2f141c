// SPDX-License-Identifier: Apache-2.0
#include "line.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "command.h"
#include "io/loop.h"
#include "measure.h"
#include "net/tcp_network.h"

namespace cistern {
namespace {

constexpr std::size_t kPairs = 2;
constexpr std::int64_t kWaitNs = 20'000'000'000;  // for iperf3's server

// Bytes a second that an iperf3 client's report says. It ends with 0 where nobody listened, too.
Result<double> ReceivedRate(const std::string& report) {
  boost::system::error_code error;
  const boost::json::value said = boost::json::parse(report, error);
  const auto* rate = error ? nullptr : said.find_pointer("/end/sum_received/bits_per_second", error);
  if (rate == nullptr || !rate->is_number())
    return Error(Code::kMismatch, Text("iperf3 reported no rate: ", report.substr(0, 300)));
  return rate->to_number<double>() / 8;
}

// Once its server listens.
Result<double> RateOfOne(const std::string& port, std::uint64_t bytes) {
  const Stopwatch watch;
  for (;;) {
    Result<std::string> report = OutputOf({"iperf3", "-c", "127.0.0.1", "-p", port, "-n", Text(bytes), "-J"});
    Result<double> rate = report ? ReceivedRate(*report) : Error(report.error());
    if (rate || watch.Ns() >= kWaitNs) return rate;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Two ends of a connection over loopback.
struct Ends {
  Fd from, to;
};

Result<Ends> ConnectedEnds() {
  const auto failed = [](const char* what) {
    return Error(Code::kIoError, Text(what, " over loopback: ", ErrnoText(errno)));
  };
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (bind(listener.get(), any, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), any, &size) != 0)
    return failed("listening");
  Ends ends{.from = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), .to = Fd()};
  // As connections between near hosts have it (net/tcp_network.h).
  for (const std::string_view control : {"cubic", "reno"}) {
    if (setsockopt(ends.from.get(), IPPROTO_TCP, TCP_CONGESTION, control.data(),
                   static_cast<socklen_t>(control.size())) == 0)
      break;
  }
  if (connect(ends.from.get(), any, size) != 0) return failed("connecting");
  ends.to = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!ends.to.valid()) return failed("accepting");
  return ends;
}

// What one call sends or receives of a memory of kBareBytes, from `at` of the whole on.
std::array<iovec, 8> BareBlocks(std::byte* memory, std::uint64_t at, std::size_t count) {
  constexpr std::size_t kBlockBytes = 64u << 10;
  std::array<iovec, 8> blocks{};
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t in = at % kBlockBytes;
    blocks[i] = {memory + at % BareLine::kBareBytes, kBlockBytes - in};
    at += kBlockBytes - in;
  }
  return blocks;
}

// `move` is sendmsg or recvmsg; whether all were moved.
template <class Move>
bool MoveAll(std::byte* memory, std::uint64_t bytes, std::size_t blocks_a_call, const Move& move) {
  for (std::uint64_t at = 0; at < bytes;) {
    std::array<iovec, 8> blocks = BareBlocks(memory, at, blocks_a_call);
    msghdr message{};
    message.msg_iov = blocks.data();
    message.msg_iovlen = blocks_a_call;
    const ssize_t moved = move(&message);
    if (moved <= 0) return false;
    at += static_cast<std::uint64_t>(moved);
  }
  return true;
}

}  // namespace

Result<double> BareLine::Rate(std::uint64_t bytes) {
  Result<Ends> ends = ConnectedEnds();
  if (!ends) return Error(ends.error());
  bytes -= bytes % (512u << 10);
  bool sent = false;
  const Stopwatch watch;
  std::thread sender([&] {
    sent = MoveAll(from_.data(), bytes, 8,
                   [&](msghdr* message) { return sendmsg(ends->from.get(), message, MSG_NOSIGNAL); });
    shutdown(ends->from.get(), SHUT_WR);
  });
  // Four: as much as a rail asks for at once.
  const bool received =
      MoveAll(to_.data(), bytes, 4, [&](msghdr* message) { return recvmsg(ends->to.get(), message, 0); });
  const std::int64_t ns = watch.Ns();
  if (!received) ends->to.Close();
  sender.join();
  if (!received || !sent) return Error(Code::kIoError, "a bare connection over loopback ended too early");
  return static_cast<double>(bytes) / static_cast<double>(ns);
}

Result<std::string> FreePort() {
  SystemClock clock;
  auto loop = io::MakeLoop(clock);
  if (!loop) return Error(loop.error());
  net::TcpNetwork network(**loop);
  auto listener = network.Listen("127.0.0.1:0");
  if (!listener) return Error(listener.error());
  const std::string& address = (*listener)->address();
  return address.substr(address.rfind(':') + 1);
}

bool HasLine() { return OutputOf({"iperf3", "--version"}).has_value(); }

std::string LineName() {
  if (!HasLine()) return "(iperf3 is not here)";
  std::string control;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> std::ws, control);
  return Text("two iperf3 (", control, ")");
}

Result<double> LineRate(std::uint64_t bytes) {
  std::array<Result<double>, kPairs> rates;
  std::vector<std::thread> threads;
  for (Result<double>& rate : rates) {
    Result<std::string> port = FreePort();
    if (!port) {
      rate = Error(port.error());
      break;
    }
    // The time limit is for a server whose client never came.
    threads.emplace_back(
        [port = *port] { (void)OutputOf({"timeout", "60", "iperf3", "-s", "-1", "-p", port}); });
    threads.emplace_back([&rate, port = *port, bytes] { rate = RateOfOne(port, bytes / kPairs); });
  }
  for (std::thread& thread : threads) thread.join();
  double bytes_per_s = 0;
  for (const Result<double>& rate : rates) {
    if (!rate) return rate;
    bytes_per_s += *rate;
  }
  return bytes_per_s / 1e9;
}

}  // namespace cistern
