package contenders;

import java.util.List;

/** Handles the batches of one type. */
interface Handler {
    void consume(List<Metric> batch);
}
