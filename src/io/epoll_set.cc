// SPDX-License-Identifier: Apache-2.0
#include "io/epoll_set.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

#include <limits>

#include "base/format.h"

namespace cistern::io {

Result<EpollSet> EpollSet::Make(int wake_fd) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Error(Code::kIoError, Text("epoll: ", ErrnoText(errno)));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake_fd, &event) != 0) {
    return Error(Code::kIoError, Text("epoll of the wake descriptor: ", ErrnoText(errno)));
  }
  return EpollSet(std::move(epoll));
}

Status EpollSet::Add(WatchState& watch) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  if (watch.mode != WatchMode::kLevel) event.events |= EPOLLET;
  if (watch.mode == WatchMode::kDuplex) event.events |= EPOLLOUT;
  event.data.ptr = &watch;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watch.fd, &event) == 0) return Status();
  return Status(Code::kIoError, Text("watch descriptor ", watch.fd, ": ", ErrnoText(errno)));
}

void EpollSet::Remove(WatchState& watch) {
  epoll_event unused{};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watch.fd, &unused);
  for (std::size_t i = at_; i < size_; ++i) {
    if (batch_[i].watch == &watch) batch_[i] = batch_[--size_];
  }
}

bool EpollSet::Poll() {
  epoll_event events[kBatch];
  int n = ::epoll_wait(epoll_.get(), events, kBatch, 0);
  at_ = size_ = 0;
  for (int i = 0; i < n; ++i) {
    auto* watch = static_cast<WatchState*>(events[i].data.ptr);
    if (watch != nullptr) batch_[size_++] = {watch, events[i].events};
  }
  return n > 0;
}

EpollSet::Ready EpollSet::Next() { return at_ < size_ ? batch_[at_++] : Ready{}; }

void EpollSet::Wait(std::int64_t at_most_ns) {
  // ppoll instead of epoll_pwait2: nanoseconds too, and every container's filter knows it.
  pollfd ready{epoll_.get(), POLLIN, 0};
  timespec time{at_most_ns / 1'000'000'000, at_most_ns % 1'000'000'000};
  bool for_ever = at_most_ns == std::numeric_limits<std::int64_t>::max();
  ::ppoll(&ready, 1, for_ever ? nullptr : &time, nullptr);
}

}  // namespace cistern::io
