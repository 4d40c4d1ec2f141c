// SPDX-License-Identifier: Apache-2.0
#include "etcd/curl_loop.h"

#include <curl/curl.h>
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/format.h"

namespace cistern::etcd {
namespace {

constexpr int kReadyAtOnce = 64;
constexpr long kIdleBeforeProbeS = 10, kBetweenProbesS = 5;  // of a watch whose host may have died

struct EasyFree {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct LinesFree {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

Status CheckReadable(std::string_view what, const std::string& file) {
  if (file.empty() || ::access(file.c_str(), R_OK) == 0) return Status();
  return Status(Code::kInvalid, Text(what, " ", file, ": ", ErrnoText(errno)));
}

}  // namespace

std::string CurlTransfer::TakeAll() {
  std::string all = std::exchange(bytes_, {});
  all.erase(0, std::exchange(taken_, 0));
  scanned_ = 0;
  return all;
}

std::optional<std::string> CurlTransfer::TakeLine() {
  const std::size_t end = bytes_.find('\n', scanned_);
  if (end == std::string::npos) {
    // The rest moves to the front while it is short.
    bytes_.erase(0, std::exchange(taken_, 0));
    scanned_ = bytes_.size();
    return std::nullopt;
  }
  std::string line = bytes_.substr(taken_, end - taken_);
  taken_ = scanned_ = end + 1;
  return line;
}

struct CurlLoop::Impl {
  Impl(io::Loop& loop_in, CurlOptions options_in)
      : loop(loop_in),
        options(std::move(options_in)),
        timer(loop.executor(), [this] { Act(CURL_SOCKET_TIMEOUT, 0); }) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
  }
  ~Impl() {
    if (multi != nullptr) curl_multi_cleanup(multi);
    watch.End();
    curl_global_cleanup();
  }

  Status Start() {
    for (const auto& [what, file] : {std::pair("authorities' certificates", &options.authorities_file),
                                     {"certificate", &options.certificate_file},
                                     {"key", &options.key_file}}) {
      if (Status status = CheckReadable(what, *file); !status.ok()) return status;
    }
    multi = curl_multi_init();
    ready = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (multi == nullptr || !ready.valid()) return Status(Code::kIoError, "libcurl cannot be set up");
    auto watched = loop.Watch(ready.get(), io::WatchMode::kLevel, [this](std::uint32_t) { Harvest(); });
    if (!watched) return watched.error();
    watch = std::move(*watched);
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, &Impl::OnSocket);
    curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, &Impl::OnTimer);
    curl_multi_setopt(multi, CURLMOPT_TIMERDATA, this);
    return Status();
  }

  // libcurl's sockets lie in an epoll instance of their own, because they are watched by level and for what
  // changes; the loop watches that.
  static int OnSocket(CURL* easy, curl_socket_t socket, int what, void* given, void*) {
    Impl& self = *static_cast<Impl*>(given);
    const int ready = self.ready.get();
    epoll_event event{};
    event.data.fd = socket;
    if (what == CURL_POLL_REMOVE) {
      ::epoll_ctl(ready, EPOLL_CTL_DEL, socket, &event);  // fails where it is closed, and so gone
      return 0;
    }
    if (what != CURL_POLL_OUT) event.events |= EPOLLIN;
    if (what != CURL_POLL_IN) event.events |= EPOLLOUT;
    if (::epoll_ctl(ready, EPOLL_CTL_MOD, socket, &event) == 0) return 0;
    // Told of an error, libcurl would end every transfer that there is, and begin none beside them.
    if (::epoll_ctl(ready, EPOLL_CTL_ADD, socket, &event) != 0) self.unwatched.emplace_back(easy, errno);
    return 0;
  }
  static int OnTimer(CURLM*, long timeout_ms, void* given) {
    Impl& self = *static_cast<Impl*>(given);
    if (timeout_ms < 0) {
      self.timer.Disarm();
    } else {
      self.timer.Arm(self.loop.clock().Now().PlusUs(timeout_ms * 1'000));
    }
    return 0;
  }

  void Harvest() {
    std::array<epoll_event, kReadyAtOnce> events;
    const int count = ::epoll_wait(ready.get(), events.data(), kReadyAtOnce, 0);
    for (int i = 0; i < count; ++i) {
      const std::uint32_t had = events[static_cast<std::size_t>(i)].events;
      int bits = 0;
      if ((had & EPOLLIN) != 0) bits |= CURL_CSELECT_IN;
      if ((had & EPOLLOUT) != 0) bits |= CURL_CSELECT_OUT;
      // Whatever it waits for then says what is wrong.
      if ((had & (EPOLLERR | EPOLLHUP)) != 0) bits |= CURL_CSELECT_IN | CURL_CSELECT_OUT | CURL_CSELECT_ERR;
      Act(events[static_cast<std::size_t>(i)].data.fd, bits);
    }
  }
  void Act(curl_socket_t socket, int bits) {
    int running = 0;
    curl_multi_socket_action(multi, socket, bits, &running);
    TellEnds();
  }
  void TellEnds();

  io::Loop& loop;
  const CurlOptions options;
  CURLM* multi = nullptr;
  Fd ready;
  io::FdWatch watch;
  Timer timer;
  // What libcurl has just asked for in vain: transfers, each with the errno.
  std::vector<std::pair<CURL*, int>> unwatched;
};

class CurlTransferBody final : public CurlTransfer {
 public:
  CurlTransferBody(CurlLoop::Impl& curl, CurlRequest request)
      : curl_(curl), request_(std::move(request)), easy_(curl_easy_init()) {}
  ~CurlTransferBody() override {
    if (added_) curl_multi_remove_handle(curl_.multi, easy_.get());
  }

  void Start() {
    CURL* easy = easy_.get();
    if (easy == nullptr) return Fail("libcurl has no memory");
    for (const std::string& line :
         {std::string("Expect:"), std::string("Content-Type: application/json"),
          request_.token.empty() ? std::string() : "Authorization: " + request_.token}) {
      if (!line.empty()) lines_.reset(curl_slist_append(lines_.release(), line.c_str()));
    }
    curl_easy_setopt(easy, CURLOPT_URL, request_.url.c_str());
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(easy, CURLOPT_PROXY, "");  // whatever the environment says
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // who gives up does not wait for the look-up of a name
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "cistern");
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, lines_.get());
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(curl_.options.connect_us / 1'000));
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, kIdleBeforeProbeS);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, kBetweenProbesS);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error_.data());
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &CurlTransferBody::OnBytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, this);
    if (!curl_.options.authorities_file.empty()) {
      curl_easy_setopt(easy, CURLOPT_CAINFO, curl_.options.authorities_file.c_str());
      curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);  // the system's, which would be believed as well
    }
    if (!curl_.options.certificate_file.empty()) {
      curl_easy_setopt(easy, CURLOPT_SSLCERT, curl_.options.certificate_file.c_str());
      curl_easy_setopt(easy, CURLOPT_SSLKEY, curl_.options.key_file.c_str());
      curl_easy_setopt(easy, CURLOPT_KEYPASSWD, "");  // nobody is there who could be asked for one
    }
    if (request_.body) {
      // By a callback, and not to be had twice: libcurl sends a request again where a connection that it
      // used before broke, and etcd would do twice what was asked once.
      curl_easy_setopt(easy, CURLOPT_POST, 1L);
      curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body->size()));
      curl_easy_setopt(easy, CURLOPT_READFUNCTION, &CurlTransferBody::OnSend);
      curl_easy_setopt(easy, CURLOPT_READDATA, this);
      curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, &CurlTransferBody::OnSeek);
      curl_easy_setopt(easy, CURLOPT_SEEKDATA, this);
    }
    const CURLMcode code = curl_multi_add_handle(curl_.multi, easy);
    added_ = code == CURLM_OK;
    if (!added_) Fail(curl_multi_strerror(code));
  }

  void End(CURLcode code) {
    curl_multi_remove_handle(curl_.multi, easy_.get());
    added_ = false;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status_);
    if (code == CURLE_OK || too_long_) return Fail("");
    Fail(error_[0] != '\0' ? error_.data() : curl_easy_strerror(code));
  }
  // Of a connection that cannot be watched.
  void Break(int error) {
    if (ended_) return;
    curl_multi_remove_handle(curl_.multi, easy_.get());
    added_ = false;
    Fail(Text("its connection cannot be watched: ", ErrnoText(error)));
  }

 private:
  void Fail(std::string failure) {
    failure_ = std::move(failure);
    ended_ = true;
    news_.Pulse();
  }

  static std::size_t OnBytes(char* bytes, std::size_t, std::size_t count, void* given) {
    CurlTransferBody& self = *static_cast<CurlTransferBody*>(given);
    if (self.status_ == 0) curl_easy_getinfo(self.easy_.get(), CURLINFO_RESPONSE_CODE, &self.status_);
    self.too_long_ = self.bytes_.size() - self.taken_ + count > self.request_.unread_bytes;
    if (self.too_long_) return CURL_WRITEFUNC_ERROR;
    self.bytes_.append(bytes, count);
    self.news_.Pulse();
    return count;
  }
  static std::size_t OnSend(char* into, std::size_t, std::size_t room, void* given) {
    CurlTransferBody& self = *static_cast<CurlTransferBody*>(given);
    self.sent_ = true;
    const std::size_t count = std::min(room, self.request_.body->size() - self.given_);
    std::memcpy(into, self.request_.body->data() + self.given_, count);
    self.given_ += count;
    return count;
  }
  static int OnSeek(void* given, curl_off_t offset, int origin) {
    const CurlTransferBody& self = *static_cast<CurlTransferBody*>(given);
    return self.given_ == 0 && offset == 0 && origin == SEEK_SET ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
  }

  CurlLoop::Impl& curl_;
  const CurlRequest request_;
  std::unique_ptr<curl_slist, LinesFree> lines_;
  std::unique_ptr<CURL, EasyFree> easy_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  std::size_t given_ = 0;  // bytes of the body
  bool added_ = false;
};

CurlTransferBody& BodyOf(CURL* easy) {
  char* transfer = nullptr;
  curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
  return *reinterpret_cast<CurlTransferBody*>(transfer);
}

void CurlLoop::Impl::TellEnds() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    BodyOf(message->easy_handle).End(code);
  }
  for (const auto& [easy, error] : std::exchange(unwatched, {})) BodyOf(easy).Break(error);
}

CurlLoop::CurlLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CurlLoop::~CurlLoop() = default;

Result<std::unique_ptr<CurlLoop>> CurlLoop::Open(io::Loop& loop, CurlOptions options) {
  auto impl = std::make_unique<Impl>(loop, std::move(options));
  if (Status status = impl->Start(); !status.ok()) return Error(std::move(status));
  return std::unique_ptr<CurlLoop>(new CurlLoop(std::move(impl)));
}

std::unique_ptr<CurlTransfer> CurlLoop::Start(CurlRequest request) {
  auto transfer = std::make_unique<CurlTransferBody>(*impl_, std::move(request));
  transfer->Start();
  return transfer;
}

}  // namespace cistern::etcd
