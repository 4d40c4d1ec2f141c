// SPDX-License-Identifier: Apache-2.0
#include "net/tls_network.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/event.h"
#include "base/task_group.h"
#include "net/sealed_stream.h"

namespace cistern::net {
namespace {

Task<Result<std::unique_ptr<Stream>>> Prove(Executor& executor, const TlsContext& context,
                                            AfterHandshake after, TlsRole role,
                                            std::unique_ptr<Stream> stream, Instant deadline) {
  if (after == AfterHandshake::kSealedChunks)
    co_return co_await SealStream(executor, context, role, std::move(stream), deadline);
  auto proved = co_await TlsStream::Handshake(executor, context, role, std::move(stream), deadline);
  if (!proved) co_return Error(std::move(proved.error()));
  co_return std::unique_ptr<Stream>(std::move(*proved));
}

class TlsListener final : public Listener {
 public:
  TlsListener(std::unique_ptr<Listener> below, const TlsContext& context, AfterHandshake after)
      : below_(std::move(below)), context_(context), after_(after), tasks_(below_->executor()) {
    tasks_.Spawn(AcceptAll());
  }
  ~TlsListener() override { tasks_.Drop(); }

  Executor& executor() override { return below_->executor(); }
  const std::string& address() const override { return below_->address(); }
  const Status& refused() const override { return refused_; }

  Task<Result<std::unique_ptr<Stream>>> Accept(Instant deadline) override {
    while (proved_.empty()) {
      Status waited = co_await came_.Wait(deadline);
      if (!waited.ok()) co_return Error(std::move(waited));
    }
    std::unique_ptr<Stream> stream = std::move(proved_.front());
    proved_.pop_front();
    room_.Pulse();
    co_return stream;
  }

 private:
  static constexpr std::int64_t kPauseUs = 50'000;  // while the process has no descriptor

  Task<void> AcceptAll() {
    for (;;) {
      while (shaking_ + proved_.size() >= TlsNetwork::kHandshakes) co_await room_.Wait();
      auto stream = co_await below_->Accept(Instant::Never());
      if (stream) {
        tasks_.Spawn(Shake(std::move(*stream)));
      } else {
        (void)co_await SleepUntil(executor().Now().PlusUs(kPauseUs));
      }
    }
  }
  Task<void> Shake(std::unique_ptr<Stream> stream) {
    const auto free = static_cast<std::int64_t>(TlsNetwork::kHandshakes - shaking_);
    const std::int64_t us = TlsNetwork::kHandshakeUs * free / std::int64_t{TlsNetwork::kHandshakes};
    ++shaking_;
    const Instant deadline = executor().Now().PlusUs(std::max(us, TlsNetwork::kLeastHandshakeUs));
    auto proved = co_await Prove(executor(), context_, after_, TlsRole::kServer, std::move(stream), deadline);
    --shaking_;
    refused_ = proved ? Status() : proved.error();
    if (proved) {
      proved_.push_back(std::move(*proved));
      came_.Pulse();
    }
    room_.Pulse();
  }

  const std::unique_ptr<Listener> below_;
  const TlsContext& context_;
  const AfterHandshake after_;
  std::size_t shaking_ = 0;
  Status refused_;
  std::deque<std::unique_ptr<Stream>> proved_;
  Event came_, room_;
  TaskGroup tasks_;
};

}  // namespace

Task<Result<std::unique_ptr<Stream>>> TlsNetwork::Connect(std::string address, Instant deadline) {
  auto stream = co_await below_.Connect(std::move(address), deadline);
  if (!stream) co_return Error(std::move(stream.error()));
  co_return co_await Prove(executor(), context_, after_, TlsRole::kClient, std::move(*stream), deadline);
}

Result<std::unique_ptr<Listener>> TlsNetwork::Listen(const std::string& address) {
  auto below = below_.Listen(address);
  if (!below) return below;
  return Over(std::move(*below));
}

std::unique_ptr<Listener> TlsNetwork::Over(std::unique_ptr<Listener> below) const {
  return std::make_unique<TlsListener>(std::move(below), context_, after_);
}

}  // namespace cistern::net
