/* The machine's limit: mini-batch SGD on the proximal subproblem of softmax regression, in plain C loops. */
#include <math.h>
#include <string.h>

/* x: rows x features, y: labels, order: rows of all batches one after another, sizes: of each batch,
   weight: classes x features, gradient: scratch of classes x features + classes. */
void solve(const float *x, const int *y, const int *order, const int *sizes, int steps, int features, int classes,
           float learning_rate, float mu, const float *anchor_weight, const float *anchor_bias,
           float *weight, float *bias, float *gradient)
{
    float score[256];
    float *bias_gradient = gradient + classes * features;
    for (int s = 0; s < steps; s++) {
        const int size = sizes[s];
        memset(gradient, 0, sizeof(float) * (classes * features + classes));
        for (int i = 0; i < size; i++) {
            const float *example = x + (long)order[i] * features;
            const int label = y[order[i]];
            float largest = -INFINITY, total = 0;
            for (int c = 0; c < classes; c++) {
                float sum = bias[c];
                for (int j = 0; j < features; j++) sum += weight[c * features + j] * example[j];
                score[c] = sum;
                if (sum > largest) largest = sum;
            }
            for (int c = 0; c < classes; c++) total += score[c] = expf(score[c] - largest);
            for (int c = 0; c < classes; c++) {
                const float residual = (score[c] / total - (c == label)) / size;
                for (int j = 0; j < features; j++) gradient[c * features + j] += residual * example[j];
                bias_gradient[c] += residual;
            }
        }
        for (int j = 0; j < classes * features; j++)
            weight[j] -= learning_rate * (gradient[j] + mu * (weight[j] - anchor_weight[j]));
        for (int c = 0; c < classes; c++)
            bias[c] -= learning_rate * (bias_gradient[c] + mu * (bias[c] - anchor_bias[c]));
        order += size;
    }
}
