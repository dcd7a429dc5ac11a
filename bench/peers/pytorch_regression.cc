// Repeats the fit of examples/linear_regression.c in PyTorch from C++, and prints `throughput: N fits/s`.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

static torch::Tensor curve(const torch::Tensor &x, const torch::Tensor &p) {
    return (p[2] * x + p[1]) * x + p[0];
}

static torch::Tensor fit(const torch::Tensor &x, const torch::Tensor &y) {
    auto p = torch::arange(3, torch::kDouble).requires_grad_();
    torch::optim::LBFGS optimizer({p}, torch::optim::LBFGSOptions(1).tolerance_grad(1e-10).tolerance_change(1e-30));
    optimizer.step([&] {
        auto loss = (y - curve(x, p)).square().sum();
        optimizer.zero_grad();
        loss.backward();
        return loss;
    });
    return p.detach();
}

int main() {
    const int warm_up = 50, fits = 300;
    torch::set_num_threads(1);
    torch::manual_seed(1);
    const auto truth = torch::tensor({0.1, 1.0, -2.0}, torch::kDouble);
    const auto x = 2 * torch::rand({10000}, torch::kDouble);
    const auto y = curve(x, truth);
    auto began = std::chrono::steady_clock::now();
    torch::Tensor found;
    for (int i = 0; i < warm_up + fits; i++) {
        if (i == warm_up) {
            began = std::chrono::steady_clock::now();
        }
        found = fit(x, y);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
    if ((found - truth).abs().max().item<double>() > 1e-10) {
        std::fprintf(stderr, "pytorch_regression: not the curve\n");
        return 1;
    }
    std::printf("throughput: %.1f fits/s\n", fits / elapsed.count());
    return 0;
}
